"""Bedplate and pgbench in turns on one PostgreSQL server: ratios of throughput and client CPU.

Each pair is one run of ours and one of pgbench, in an order that alternates, each on a freshly
loaded database of the same scale after a checkpoint. The server is Debian's PostgreSQL on a
directory in memory with default settings, so that the processors are the limit and a difference
between the clients shows. Both clients use the Unix socket and the same number of threads.

The ratio of a pair is ours over pgbench's. The table gives the Hodges-Lehmann estimate over the
pairs with its exact 95 % signed-rank interval (needs six pairs or more).

Client CPU of ours is what its load threads used in the measured window; that of pgbench is what its
whole process used, less what a run of one transaction a client uses.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import pwd
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import bedplate

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKLOADS = {"tpcb": [], "select-only": ["-S"]}


@dataclass(frozen=True)
class Sample:
    """What one run of one client gave."""

    tps: float
    cpu_us: float


def bin_dir() -> Path:
    """Directory of the newest PostgreSQL on this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[4]))
    if not found:
        sys.exit("bench: no PostgreSQL below /usr/lib/postgresql; run scripts/setup.sh test")
    return found[-1].parent


def as_postgres() -> list[str]:
    """Words before a command that must not run as root."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


@contextlib.contextmanager
def server(clients: int) -> Iterator[tuple[Path, int]]:
    """Start a server of our own; yields its socket directory and port."""
    base = Path(tempfile.mkdtemp(prefix="bedplate-bench-", dir="/dev/shm"))
    port = 5999
    if os.geteuid() == 0:
        shutil.chown(base, "postgres", "postgres")
    try:
        data = base / "data"
        tools = bin_dir()
        initdb = [tools / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-locale"]
        subprocess.run([*as_postgres(), *initdb], check=True, stdout=subprocess.DEVNULL, cwd="/")
        options = (
            f"-k {base} -c port={port} -c listen_addresses='' -c max_connections={clients + 20}"
        )
        control = [*as_postgres(), tools / "pg_ctl", "-D", data, "-w", "-l", base / "log"]
        subprocess.run(
            [*control, "-o", options, "start"], check=True, stdout=subprocess.DEVNULL, cwd="/"
        )
        try:
            yield base, port
        finally:
            subprocess.run(
                [*control, "-m", "fast", "stop"], check=True, stdout=subprocess.DEVNULL, cwd="/"
            )
    finally:
        shutil.rmtree(base, ignore_errors=True)


def ours(socket: Path, port: int, workload: str, options: argparse.Namespace) -> Sample:
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
            "threads": options.threads,
            "protocol": options.protocol,
            "duration": options.seconds,
            "warmup": 0,
        },
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
    run = [
        "pgbench", *common, "-n", "-c", str(options.clients), "-j", str(options.threads),
        "-M", options.protocol, *WORKLOADS[workload],
    ]  # fmt: skip
    start_up, _ = timed([*run, "-t", "1", "postgres"])
    cpu, text = timed([*run, "-T", str(options.seconds), "postgres"])
    transactions = int(re.search(r"actually processed: (\d+)", text)[1])
    tps = float(re.search(r"tps = ([\d.]+) \(without", text)[1])
    tables = "pgbench_accounts, pgbench_branches, pgbench_tellers, pgbench_history"
    subprocess.run([*psql, f"drop table {tables}"], check=True)
    return Sample(tps, (cpu - start_up) * 1e6 / transactions)


def timed(command: list[str]) -> tuple[float, str]:
    """CPU seconds and output of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, done.stdout


def hodges_lehmann(ratios: list[float]) -> tuple[float, float, float]:
    """Estimate and exact 95 % signed-rank interval of the ratio, over pairs."""
    logs = [math.log(ratio) for ratio in ratios]
    walsh = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(logs, 2))
    n = len(logs)
    ways = [1] + [0] * (n * (n + 1) // 2)
    for rank in range(1, n + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    cut, tail = -1, 0
    while (tail + ways[cut + 1]) / 2**n <= 0.025:  # noqa: PLR2004
        cut += 1
        tail += ways[cut]
    middle = len(walsh) // 2
    median = walsh[middle] if len(walsh) % 2 else (walsh[middle - 1] + walsh[middle]) / 2
    low, high = (walsh[cut], walsh[-1 - cut]) if cut >= 0 else (math.nan, math.nan)
    return math.exp(median), math.exp(low), math.exp(high)


def main() -> None:
    """Run the pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument(
        "--protocol", default="prepared", choices=["simple", "extended", "prepared"]
    )
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    options = parser.parse_args()

    samples = []
    with server(options.clients) as (socket, port):
        for workload in options.workloads:
            for pair in range(options.pairs):
                order = [ours, pgbench] if pair % 2 == 0 else [pgbench, ours]
                taken = {
                    client.__name__: client(socket, port, workload, options) for client in order
                }
                samples.append({"workload": workload, "pair": pair, **taken})
                a, b = taken["ours"], taken["pgbench"]
                print(
                    f"{workload} pair {pair}: tps {a.tps:.0f} / {b.tps:.0f}"
                    f", client CPU us {a.cpu_us:.1f} / {b.cpu_us:.1f}",
                    file=sys.stderr,
                    flush=True,
                )
    print(
        f"\n{options.pairs} pairs of {options.seconds} s, {options.clients} clients, "
        f"{options.threads} threads, protocol {options.protocol}, scale {options.scale}; "
        "ours over pgbench's\n"
    )
    print("| workload | tps ratio | 95 % interval | client CPU ratio | 95 % interval |")
    print("|---|---|---|---|---|")
    for workload in options.workloads:
        rows = [row for row in samples if row["workload"] == workload]
        cells = []
        for figure in ("tps", "cpu_us"):
            ratios = [
                getattr(row["ours"], figure) / getattr(row["pgbench"], figure) for row in rows
            ]
            estimate, low, high = hodges_lehmann(ratios)
            cells += [f"{estimate:.3f}", f"{low:.3f} to {high:.3f}"]
        print(f"| {workload} | {' | '.join(cells)} |")
    if options.json:
        options.json.write_text(
            json.dumps(samples, default=lambda sample: sample.__dict__, indent=1)
        )


if __name__ == "__main__":
    main()
