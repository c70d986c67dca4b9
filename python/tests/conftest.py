"""Fixtures: run directories to read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """Return a complete run: two storages, two blocks, the last trial void.

    ``cargo test -p bedplate-results -- --ignored`` makes it anew.
    """
    return Path(shutil.copytree(DATA / "quick", tmp_path / "quick"))


@pytest.fixture
def killed(quick: Path) -> Path:
    """Return the same run, killed in its third trial."""
    for table in quick.glob("*.parquet"):
        table.unlink()
    (quick / "COMPLETE").unlink()
    shutil.rmtree(quick / "trials" / "t0003")
    (quick / "trials" / "t0002" / "record.json").unlink()
    intervals = quick / "trials" / "t0002" / "intervals.jsonl"
    intervals.write_bytes(intervals.read_bytes()[:-100])
    return quick
