"""Bedplate and pgbench in turns on one PostgreSQL server: ratios of throughput and client CPU.

Each pair is one run of ours and one of pgbench, in an order that alternates, each on a freshly
loaded database of the same scale after a checkpoint. The server is Debian's PostgreSQL on a
directory in memory with default settings, so that the processors are the limit and a difference
between the clients shows. Both clients use the Unix socket. Ours has the threads that it has by
default, pgbench one for each CPU, which serves it best.

The ratio of a pair is ours over pgbench's. The table gives the Hodges-Lehmann estimate over the
pairs with its exact 95 % signed-rank interval (needs six pairs or more), and the medians of the
client CPU of a transaction.

Client CPU of ours is what its load threads used in the measured window; that of pgbench is what its
whole process used, less what a run of one transaction a client uses.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import subprocess
import sys
import tempfile
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
    from collections.abc import Iterator, Mapping

WORKLOADS = {"tpcb": [], "select-only": ["-S"]}


def bin_dir() -> Path:
    """Directory of the newest PostgreSQL on this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[4]))
    if not found:
        sys.exit("bench: no PostgreSQL below /usr/lib/postgresql; run scripts/setup.sh test")
    return found[-1].parent


@contextlib.contextmanager
def server(clients: int) -> Iterator[tuple[Path, int]]:
    """Start a server of our own; yields its socket directory and port."""
    user, tools, port = as_user("postgres"), bin_dir(), 5999
    with memory_directory("postgres") as base:
        data = base / "data"
        initdb = [tools / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-locale"]
        subprocess.run([*user, *initdb], check=True, stdout=subprocess.DEVNULL, cwd="/")
        options = (
            f"-k {base} -c port={port} -c listen_addresses='' -c max_connections={clients + 20}"
        )
        control = [*user, tools / "pg_ctl", "-D", data, "-w", "-l", base / "log"]
        subprocess.run(
            [*control, "-o", options, "start"], check=True, stdout=subprocess.DEVNULL, cwd="/"
        )
        try:
            yield base, port
        finally:
            subprocess.run(
                [*control, "-m", "fast", "stop"], check=True, stdout=subprocess.DEVNULL, cwd="/"
            )


def ours(
    socket: Path,
    port: int,
    workload: str,
    options: argparse.Namespace,
    design: Mapping[str, object] | None = None,
) -> Sample:
    """One trial of ours."""
    spec = {
        "name": "bench",
        "engine": {
            "kind": "postgres",
            "version": "13",
            "allow_other_version": True,
            "provision": "url",
            "url": f"postgresql://postgres@{str(socket).replace('/', '%2F')}:{port}/postgres",
        },
        "workload": {
            "kind": workload,
            "scale": options.scale,
            "clients": options.clients,
            "protocol": options.protocol,
            "duration": options.seconds,
            "warmup": 0,
        },
        "design": design or {},
    }
    with tempfile.TemporaryDirectory() as out:
        results = bedplate.run(spec, progress=False, out=out)
        (row,) = results.trials.to_dicts()
    if row["tps"] is None:
        sys.exit(f"bench: our trial is void: {row['trust_reasons']}")
    return Sample(row["tps"], row["client_cpu_us_per_transaction"])


def pgbench(socket: Path, port: int, workload: str, options: argparse.Namespace) -> Sample:
    """One run of pgbench."""
    common = ["-h", str(socket), "-p", str(port), "-U", "postgres"]
    load = ["pgbench", *common, "-i", "-q", "-s", str(options.scale), "postgres"]
    subprocess.run(load, check=True, capture_output=True)
    psql = ["psql", "-q", *common, "postgres", "-c"]
    subprocess.run([*psql, "checkpoint"], check=True)
    threads = min(options.clients, os.cpu_count() or 1)
    run = [
        "pgbench", *common, "-n", "-c", str(options.clients), "-j", str(threads),
        "-M", options.protocol, *WORKLOADS[workload],
    ]  # fmt: skip
    start_up, _ = timed([*run, "-t", "1", "postgres"])
    cpu, text = timed([*run, "-T", str(options.seconds), "postgres"])
    transactions = int(re.search(r"actually processed: (\d+)", text)[1])
    tps = float(re.search(r"tps = ([\d.]+) \(without", text)[1])
    tables = "pgbench_accounts, pgbench_branches, pgbench_tellers, pgbench_history"
    subprocess.run([*psql, f"drop table {tables}"], check=True)
    return Sample(tps, (cpu - start_up) * 1e6 / transactions)


def main() -> None:
    """Run the pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument(
        "--protocol", default="prepared", choices=["simple", "extended", "prepared"]
    )
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    options = parser.parse_args()

    taken = {}
    with server(options.clients) as (socket, port):
        for workload in options.workloads:
            situation = (socket, port, workload, options)
            clients = {run.__name__: functools.partial(run, *situation) for run in (ours, pgbench)}
            taken[workload] = in_turns(workload, options.pairs, clients)
    print(
        f"\n{options.pairs} pairs of {options.seconds} s, {options.clients} clients, "
        f"protocol {options.protocol}, scale {options.scale}; "
        "ours over pgbench's\n"
    )
    print_headings(["workload"])
    for workload, rounds in taken.items():
        print_row([workload], rounds, "ours", "pgbench")
    if options.json:
        write_samples(options.json, taken)


if __name__ == "__main__":
    main()
