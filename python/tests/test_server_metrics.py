"""What servers count of their own work, beside readings of the same from elsewhere."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from conftest import Desk

ENGINES = {
    "postgres": '[engine]\nprovision = "process"\nallow_other_version = true\n',
    "mariadb": '[engine]\nkind = "mariadb"\nprovision = "process"\nallow_other_version = true\n',
}
EXT4 = '[[storage]]\nkind = "ext4"\n'
LOAD = "[workload]\nclients = 4\nduration = 4\nwarmup = 0\n"
CONTAINER = EXT4 + '[engine]\nprovision = "container"\n'


def run(desk: Desk, spec: str) -> tuple[dict[str, Any], bp.Results]:
    done = desk.run(spec)
    assert done.returncode == 0, done.stderr
    assert "metrics are not read" not in done.stderr
    (directory,) = desk.runs()
    results = bp.load_run(directory)
    (row,) = results.trials.to_dicts()
    return row, results


def summed(results: bp.Results, metric: str) -> float:
    """Return what a rate adds up to over its readings."""
    total, before_s = 0.0, 0.0
    readings = results.metrics.filter(metric=metric).sort("at_s")
    for at_s, rate in readings.select("at_s", "value").rows():
        total += rate * (at_s - before_s)
        before_s = at_s
    return total


@pytest.mark.parametrize("engine", ["postgres", "mariadb"])
def test_rates_add_up_to_the_counts_of_the_trial(desk: Desk, engine: str) -> None:
    row, results = run(desk, EXT4 + ENGINES[engine] + LOAD)
    # Readings end up to a second before the load does.
    assert row["wal_bytes"] * 0.6 < summed(results, "server_wal_bytes_per_s") <= row["wal_bytes"]
    assert row["wal_bytes_per_commit"] == pytest.approx(row["wal_bytes"] / row["writing_commits"])
    assert 0.5 < row["cache_hit_ratio"] <= 1
    # A transaction of five statements takes the server some of its time, and no more than there is.
    assert 50 < row["server_cpu_us_per_transaction"] < 4 * 1e6 / row["tps"]
    assert results.metrics.filter(metric="server_active_clients")["value"].max() <= 4
    if engine == "mariadb":
        ages = results.metrics.filter(metric="server_checkpoint_age_bytes")["value"]
        assert ages.len() > 2
        assert ages.min() >= 0


WATCH = "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') \\watch 0.02\n"


def watched(desk: Desk, process: subprocess.Popen[bytes]) -> list[tuple[int, int]]:
    """Return the log's position and the bytes written to the device, 50 times a second."""
    while not (sockets := list(desk.state.glob("work/bedplate-*-server/.s.PGSQL.*"))):
        assert process.poll() is None
        time.sleep(0.02)
    (loop,) = desk.state.glob("work/bedplate-*/volume0.img")
    command = ["losetup", "-n", "-O", "NAME", "-j", loop]
    device = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    stat = Path("/sys/class/block", device.removeprefix("/dev/"), "stat")
    # The server may not be ready yet.
    while not (seen := positions(sockets[0].parent, stat)):
        assert process.poll() is None
        time.sleep(0.05)
    return seen


def positions(sockets: Path, stat: Path) -> list[tuple[int, int]]:
    command = ["psql", "-X", "-h", str(sockets), "-U", "postgres", "-At"]
    seen: list[tuple[int, int]] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as psql:
        assert psql.stdin
        assert psql.stdout
        psql.stdin.write(WATCH)
        psql.stdin.close()
        for line in psql.stdout:
            if line.strip().isdigit():
                with contextlib.suppress(OSError):
                    seen.append((int(line), int(stat.read_text().split()[6]) * 512))
    return seen


def test_log_and_device_bytes_are_those_of_psql_and_the_kernel(desk: Desk) -> None:
    load = "[workload]\nclients = 4\nduration = 6\nwarmup = 0\n"
    settings = "settings = { autovacuum = false }\n"
    process = desk.start(EXT4 + ENGINES["postgres"] + settings + load)
    seen = watched(desk, process)
    assert process.wait(60) == 0
    (directory,) = desk.runs()
    (row,) = bp.load_run(directory).trials.to_dicts()
    # Before the load the device is idle for a second: the position that was seen most often.
    idle, _ = Counter(position for position, _ in seen).most_common(1)[0]
    start = max(at for at, (position, _) in enumerate(seen) if position == idle)
    end = next(at for at in range(len(seen)) if seen[at][0] == seen[-1][0])
    wal, written = (seen[end][which] - seen[start][which] for which in (0, 1))
    assert row["wal_bytes"] == pytest.approx(wal, rel=0.02)
    assert row["device_written_bytes"] == pytest.approx(written, rel=0.02)


def test_a_container_shows_its_memory_and_cpu(desk: Desk) -> None:
    row, results = run(desk, CONTAINER + LOAD)
    assert row["server_cpu_us_per_transaction"] > 50
    memory = results.metrics.filter(metric="server_memory_bytes")["value"]
    assert memory.len() > 2
    assert 20 << 20 < memory.min() <= memory.max() < 2 << 30


def test_metrics_can_be_left_out_and_counts_stay(desk: Desk) -> None:
    row, results = run(desk, EXT4 + ENGINES["postgres"] + LOAD + "[design]\nmetrics = false\n")
    assert results.metrics.is_empty()
    assert row["wal_bytes"] > 0
    assert row["durability"] in {"durable", "group"}


@pytest.mark.parametrize(("engine", "most", "clients"), [("postgres", 11, 4), ("mariadb", 10, 5)])
def test_clients_that_take_all_connections_leave_room_for_reading(
    desk: Desk, engine: str, most: int, clients: int
) -> None:
    # Ordinary users of two instances take all that is not kept for a superuser.
    settings = f"settings = {{ max_connections = {most} }}\n"
    load = f"[workload]\ninstances = 2\nclients = {clients}\nduration = 2\nwarmup = 0\n"
    row, results = run(desk, EXT4 + ENGINES[engine] + settings + load)
    assert row["trust"] != "void"
    assert row["wal_bytes"] > 0
    assert results.metrics.filter(metric="server_wal_bytes_per_s").height >= 1
