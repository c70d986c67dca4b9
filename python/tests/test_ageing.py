"""The ageing of volumes, by what it leaves."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Desk

SCRIPT = Path(__file__).parents[2] / "rust/adapters/src/storage/age.pl"
MIB = 1 << 20


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def age(volume: Path, fullness: int, churn: int, seed: int) -> tuple[dict[str, int], list[object]]:
    """Age a volume; return what the script told, and the files that are there."""
    command = ["perl", SCRIPT, volume, *map(str, (fullness, churn, seed))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = dict(line.split("=") for line in done.stdout.splitlines())
    home = volume / "bedplate-ageing"
    files = sorted((str(path.relative_to(home)), path) for path in home.glob("*/*"))
    return (
        {key: int(value) for key, value in told.items()},
        [(name, path.stat().st_size, hash(path.read_bytes())) for name, path in files],
    )


def test_a_volume_is_as_full_and_as_worn_as_it_was_asked_for(volume: Path) -> None:
    told, files = age(volume, 60, 3, seed=1)
    stat = os.statvfs(volume)
    used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    assert told["used_bytes"] == used
    assert told["all_bytes"] == 100 * MIB
    # A file more or less, of at most 1 MiB each.
    assert used == pytest.approx(60 * MIB, abs=2 * MIB)
    sizes = [size for _, size, _ in files]
    assert (told["files"], told["bytes"]) == (len(sizes), sum(sizes))
    assert told["written_bytes"] == pytest.approx(4 * 60 * MIB, rel=0.03)
    # As many from 4 to 32 KiB as from 128 KiB to 1 MiB, three powers of two each.
    small, large = (sum(low <= size < 8 * low for size in sizes) for low in (4096, 131_072))
    assert small + large > 100
    assert 0.6 < small / large < 1.7
    assert min(sizes) >= 4096
    assert max(sizes) <= MIB


def test_the_same_seed_gives_the_same_files(volume: Path, tmp_path: Path) -> None:
    seen = []
    for seed in (7, 7, 8):
        seen.append(age(volume, 30, 1, seed)[1])
        subprocess.run(["rm", "-r", tmp_path / "bedplate-ageing"], check=True)
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


@pytest.mark.parametrize(
    ("site", "storage"),
    [
        pytest.param("local", bp.Ext4(fullness=[0, 60], size="600MiB"), id="local-ext4"),
        pytest.param("docker", bp.Btrfs(fullness=[0, 60], size="1GiB"), id="docker-btrfs"),
    ],
)
def test_a_database_runs_beside_the_files(
    desk: Desk, site: str, storage: bp.Ext4 | bp.Btrfs
) -> None:
    spec = bp.Spec(site=site, storage=storage, workload=bp.TpcB(duration=1, warmup=0))
    done = desk.run(spec.to_json(), name="spec.json")
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    rows = {row["fullness"]: row for row in bp.load_run(run).trials.to_dicts()}
    fresh, aged = rows["0"], rows["60"]
    assert fresh["trust"] != "void", fresh["trust_reasons"]
    assert aged["trust"] != "void", aged["trust_reasons"]
    assert re.search(r"aged: (59|60) % full, written (2.9|3.0) times", aged["storage_line"])
    assert "aged" not in fresh["storage_line"]
    assert aged["age_s"] > 0
    assert fresh["age_s"] is None
    # Their bytes are on the volume, but not counted as the database's in memory.
    assert aged["volume_used_bytes"] - fresh["volume_used_bytes"] > 300 * MIB
    assert aged["cached_share"] > 0.5
    desk.assert_nothing_left()
