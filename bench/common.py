"""What the benches share: a directory for a server, runs in turns, and ratios with intervals."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pwd
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

HEADINGS = ("per second, ratio", "95 % interval", "client CPU, ratio", "95 % interval", "µs")


@dataclass(frozen=True)
class Sample:
    """What one run of one client gave: transactions or queries a second, and client CPU of each."""

    per_second: float
    cpu_us: float


def as_user(name: str) -> list[str]:
    """Words before a command that must not run as root."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(name)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


@contextlib.contextmanager
def memory_directory(user: str) -> Iterator[Path]:
    """Make a directory in memory, which `user` owns if we are root; it is gone afterwards."""
    # So that what is in use is given back when the bench is ended from outside, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    base = Path(tempfile.mkdtemp(prefix="bedplate-bench-", dir="/dev/shm"))
    try:
        if os.geteuid() == 0:
            shutil.chown(base, user, user)
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def timed(command: Sequence[str]) -> tuple[float, str]:
    """CPU seconds and output of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, done.stdout


def in_turns(
    label: str, rounds: int, clients: Mapping[str, Callable[[], Sample]]
) -> list[dict[str, Sample]]:
    """Run all clients so many times, forwards and backwards in turns."""
    taken = []
    for number in range(rounds):
        order = list(clients) if number % 2 == 0 else list(reversed(clients))
        samples = {name: clients[name]() for name in order}
        taken.append(samples)
        seen = (f"{name} {s.per_second:.0f}/s {s.cpu_us:.1f} us" for name, s in samples.items())
        print(f"{label}, round {number}: {', '.join(seen)}", file=sys.stderr, flush=True)
    return taken


def print_row(first: Sequence[str], taken: list[dict[str, Sample]], ours: str, peer: str) -> None:
    """Print a row of the table: what it is about, then the figures of `HEADINGS`."""
    cells = list(first)
    for figure in ("per_second", "cpu_us"):
        ratios = [getattr(pair[ours], figure) / getattr(pair[peer], figure) for pair in taken]
        estimate, low, high = hodges_lehmann(ratios)
        cells += [f"{estimate:.3f}", f"{low:.3f} to {high:.3f}"]
    a, b = (statistics.median(pair[name].cpu_us for pair in taken) for name in (ours, peer))
    cells.append(f"{a:.1f} / {b:.1f}")
    print(f"| {' | '.join(cells)} |")


def print_headings(first: Sequence[str]) -> None:
    """Print the head of the table."""
    headings = [*first, *HEADINGS]
    print(f"| {' | '.join(headings)} |")
    print("|---" * len(headings) + "|")


def write_samples(path: Path, taken: Mapping[str, list[dict[str, Sample]]]) -> None:
    """Write every sample to a file."""
    rows = [
        {"label": label, "round": number, **{name: asdict(s) for name, s in samples.items()}}
        for label, rounds in taken.items()
        for number, samples in enumerate(rounds)
    ]
    path.write_text(json.dumps(rows, indent=1))


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
    low, high = (walsh[cut], walsh[-1 - cut]) if cut >= 0 else (math.nan, math.nan)
    return math.exp(statistics.median(walsh)), math.exp(low), math.exp(high)
