"""Bedplate, mysqlslap and sysbench in turns on one MariaDB server: throughput and client CPU.

A round is one run of each, forwards and backwards in turns with ours in the middle, so that ours is
next to both. Each run sends equally many queries over the same number of connections to a freshly
made table. Statements and rows are mysqlslap's to the letter, sent as text; sysbench gets them
through `slap.lua`. The server is Debian's MariaDB on a directory in memory that does not flush its
log at commit (innodb_flush_log_at_trx_commit=0), so that the processors are the limit and a
difference between the clients shows. All use the Unix socket without TLS. Ours has the threads
that it has by default, the peers have one for each client.

A ratio is ours over the peer's. The table gives the Hodges-Lehmann estimate over the rounds with
its exact 95 % signed-rank interval (needs six rounds or more), and the medians of the client CPU of
a query.

Client CPU and time of ours are those of the measured window, which begins when all are connected.
From those of a peer's process a run of one query a client is taken away.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from common import (
    Sample,
    as_user,
    in_turns,
    memory_directory,
    print_headings,
    print_row,
    timed,
    write_samples,
)

import bedplate

if TYPE_CHECKING:
    from collections.abc import Iterator

LOADS = ("key", "mixed")
PEERS = ("mysqlslap", "sysbench")
# mysqlslap's CREATE TABLE and rows before the queries, and the length of its list of queries.
WRITES = 100
LIST = 11


def program(name: str) -> str:
    """Path of a program that may be in a directory for root."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    return found or sys.exit(f"bench: no {name} on this machine; run scripts/setup.sh test")


@contextlib.contextmanager
def server(connections: int) -> Iterator[Path]:
    """Start a server of our own; yields its socket."""
    user = as_user("mysql")
    with memory_directory("mysql") as base:
        data, log, socket = base / "data", base / "log", base / "socket"
        shared = ["--no-defaults", f"--datadir={data}"]
        install = [
            program("mariadb-install-db"), *shared, "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]  # fmt: skip
        subprocess.run([*user, *install], check=True, stdout=subprocess.DEVNULL, cwd="/")
        serve = [
            program("mariadbd"), *shared, f"--socket={socket}", "--skip-networking",
            f"--max-connections={connections}", "--innodb-flush-log-at-trx-commit=0",
            "--innodb-log-file-size=512M", "--innodb-buffer-pool-size=512M",
        ]  # fmt: skip
        # A session of its own, out of reach of a Ctrl-C, so that it is stopped in order.
        with (
            log.open("w") as output,
            subprocess.Popen(
                [*user, *serve], cwd="/", stdout=output, stderr=output, start_new_session=True
            ) as process,
        ):
            try:
                while not socket.exists():
                    if process.poll() is not None:
                        sys.exit(f"bench: the server ended: {log.read_text()}")
                    time.sleep(0.1)
                yield socket
            finally:
                process.terminate()


def ours(socket: Path, load: str, clients: int, queries: int) -> Sample:
    """One trial of ours."""
    spec = bedplate.Spec(
        name="bench",
        engine=bedplate.MariaDb(
            allow_other_version=True,
            provision="url",
            url=f"mysql://root@localhost?socket={str(socket).replace('/', '%2F')}",
            settings={"innodb_flush_log_at_trx_commit": 0},
        ),
        workload=bedplate.Slap(
            clients=clients,
            int_columns=4,
            char_columns=4,
            key="autoincrement",
            load_type=load,
            write_number=WRITES,
            queries_per_client=queries,
        ),
    )
    with tempfile.TemporaryDirectory() as out:
        (row,) = bedplate.run(spec, progress=False, out=out).trials.to_dicts()
    if row["queries_per_second"] is None:
        sys.exit(f"bench: our trial is void: {row['trust_reasons']}")
    return Sample(row["queries_per_second"], row["client_cpu_us_per_transaction"])


def slap_command(load: str, clients: int, queries: int) -> list[str]:
    """Words of a mysqlslap that sends the same statements as ours."""
    return [
        "mysqlslap", "--no-defaults", "--auto-generate-sql", "--number-int-cols=4",
        "--number-char-cols=4", "--auto-generate-sql-add-autoincrement",
        f"--auto-generate-sql-load-type={load}", f"--auto-generate-sql-write-number={WRITES}",
        f"--auto-generate-sql-execute-number={queries}", f"--concurrency={clients}",
    ]  # fmt: skip


def mysqlslap(socket: Path, load: str, clients: int, queries: int) -> Sample:
    """One run of mysqlslap."""

    def run(queries: int) -> tuple[float, float]:
        server = [f"--socket={socket}", "--user=root", "--skip-ssl"]
        cpu, text = timed([*slap_command(load, clients, queries), *server])
        return cpu, float(re.search(r"Average number of seconds .*: ([\d.]+)", text)[1])

    return less_start_up(run(1), run(queries), clients * (queries - 1))


def sysbench(socket: Path, load: str, clients: int, queries: int) -> Sample:
    """One run of sysbench."""
    printed = subprocess.run(
        [*slap_command(load, 1, LIST), "--only-print"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    # The first three lines make the schema and use it, the last one drops it.
    make, statements, drop = printed[: 3 + WRITES], printed[3 + WRITES : -1], printed[-1]
    client = ["mariadb", "--no-defaults", f"--socket={socket}", "--user=root", "--skip-ssl"]
    command = [
        "sysbench", str(Path(__file__).with_name("slap.lua")), f"--mysql-socket={socket}",
        "--mysql-user=root", "--mysql-db=mysqlslap", "--time=0", f"--threads={clients}",
        f"--rows={WRITES - 1}",
    ]  # fmt: skip

    def run(queries: int) -> tuple[float, float]:
        subprocess.run(client, check=True, text=True, input="\n".join(make))
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write("\n".join(statements))
            file.flush()
            options = [f"--statements={file.name}", f"--events={clients * queries}"]
            cpu, text = timed([*command, *options, "run"])
        subprocess.run(client, check=True, text=True, input=drop)
        return cpu, float(re.search(r"total time: +([\d.]+)s", text)[1])

    return less_start_up(run(1), run(queries), clients * (queries - 1))


def less_start_up(
    start_up: tuple[float, float], whole: tuple[float, float], queries: int
) -> Sample:
    """Subtract a short run from a long one, both in CPU seconds and seconds."""
    cpu, seconds = (long - short for short, long in zip(start_up, whole, strict=True))
    return Sample(queries / seconds, cpu * 1e6 / queries)


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--queries", type=int, default=200_000, help="of all clients, in a run")
    parser.add_argument("--clients", type=int, nargs="*", default=[8, 64])
    parser.add_argument("--loads", nargs="*", default=list(LOADS), choices=LOADS)
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    options = parser.parse_args()

    taken = {}
    with server(max(options.clients) + 20) as socket:
        for load in options.loads:
            for clients in options.clients:
                situation = (socket, load, clients, options.queries // clients)
                # In the middle, ours is next to both.
                runs = (mysqlslap, ours, sysbench)
                taken[load, clients] = in_turns(
                    f"{load}, {clients} clients",
                    options.rounds,
                    {run.__name__: functools.partial(run, *situation) for run in runs},
                )
    print(f"\n{options.rounds} rounds of {options.queries} queries; ours over the peer's\n")
    print_headings(["queries", "clients", "peer"])
    for (load, clients), rounds in taken.items():
        for peer in PEERS:
            print_row([load, str(clients), peer], rounds, "ours", peer)
    if options.json:
        write_samples(
            options.json, {f"{load} {clients}": taken[load, clients] for load, clients in taken}
        )


if __name__ == "__main__":
    main()
