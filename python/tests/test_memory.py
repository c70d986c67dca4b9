"""The memory of the load generator: many clients cost little, and time costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

MIB = 2**20
COMMAND = Path(sys.executable).with_name("bedplate")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    msg = f"process {pid} has no resident memory"
    raise AssertionError(msg)


def measured(tmp_path: Path, clients: int, seconds: int) -> list[tuple[float, int]]:
    """Resident memory while measuring: seconds from the start of the load, bytes."""
    spec = {
        "name": f"memory-{clients}",
        "site": "local",
        "engine": {
            "kind": "postgres",
            "allow_other_version": True,
            "provision": "process",
            "settings": {"max_connections": 600},
        },
        "storage": [{"kind": "tmpfs", "size": "1GiB"}],
        "workload": {
            "kind": "select-only",
            "scale": 1,
            "clients": clients,
            "protocol": "prepared",
            "warmup": 0,
            "duration": seconds,
        },
    }
    path = tmp_path / f"{clients}.json"
    path.write_text(json.dumps(spec))
    out = tmp_path / "runs"
    command = [COMMAND, "run", path, "--out", out, "--quiet"]
    samples = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        started = None
        while process.poll() is None:
            spilled = list(out.glob(f"memory-{clients}-*/trials/t0000/intervals.jsonl"))
            if started is None and spilled and spilled[0].stat().st_size > 0:
                started = time.monotonic() - 1
            if started is not None and time.monotonic() - started < seconds:
                samples.append((time.monotonic() - started, resident_bytes(process.pid)))
            time.sleep(0.5)
    assert process.returncode == 0
    return samples


@pytest.mark.soak
def test_memory_is_bounded_by_neither_clients_nor_time(tmp_path: Path) -> None:
    few = max(size for _, size in measured(tmp_path, 1, 10))
    many = measured(tmp_path, 500, 60)
    peak = max(size for _, size in many)
    assert peak - few < 64 * MIB
    early = max(size for at, size in many if 8 <= at <= 12)
    late = max(size for at, size in many if at >= 55)
    print(f"1 client {few / MIB:.1f} MiB; 500 clients {peak / MIB:.1f} MiB at most, "
          f"{early / MIB:.1f} MiB at 10 s, {late / MIB:.1f} MiB at 60 s")  # fmt: skip
    assert late - early < MIB
