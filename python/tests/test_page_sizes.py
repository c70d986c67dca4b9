"""PostgreSQL with the page sizes that a spec asks for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from conftest import Desk

SHORT = bp.TpcB(clients=2, duration=1, warmup=0)


def engines(*sizes_kib: int) -> list[bp.Postgres]:
    return [
        bp.Postgres(
            provision="container",
            label=f"{size}kB",
            block_size=f"{size}kB",
            wal_block_size=f"{size}kB",
        )
        for size in sizes_kib
    ]


@pytest.mark.soak
def test_every_page_size_runs_and_is_read_back(desk: Desk) -> None:
    spec = bp.Spec(engine=engines(1, 4, 8, 32), storage=bp.Ext4(), workload=SHORT)
    done = desk.run(spec.to_json(), name="spec.json")
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    results = bp.load_run(run)
    rows = sorted(results.trials.to_dicts(), key=lambda row: row["page_bytes"])
    assert [row["page_bytes"] for row in rows] == [1024, 4096, 8192, 32768]
    for row in rows:
        assert row["engine"] == f"{row['page_bytes'] // 1024}kB"
        assert row["tps"] > 0
        record = json.loads((run / "trials" / f"t{row['trial']:04}" / "record.json").read_text())
        server = record["server"]
        assert server["settings"]["wal_block_size"] == str(row["page_bytes"])
        assert "compiled from Debian 13.23" in server["version_full"]
    desk.assert_nothing_left()


def test_an_image_that_is_missing_is_named_with_what_builds_it(desk: Desk) -> None:
    engine = bp.Postgres(provision="container", block_size="2kB", wal_block_size="64kB")
    spec = bp.Spec(engine=engine, storage=bp.Directory(), workload=SHORT)
    done = desk.run(spec.to_json(), name="spec.json")
    assert done.returncode == 5
    assert "bedplate images build postgres-block-2kB-wal-64kB" in done.stderr
    assert desk.runs() == []
    desk.assert_nothing_left()


def test_another_page_size_than_that_of_the_server_is_void(desk: Desk) -> None:
    engine = bp.Postgres(provision="process", allow_other_version=True, block_size="4kB")
    spec = bp.Spec(engine=engine, storage=bp.Directory(), workload=SHORT)
    done = desk.run(spec.to_json(), name="spec.json")
    assert done.returncode == 5
    assert "`engine.block_size` is 4096 bytes, but the live server has 8192" in done.stdout
    desk.assert_nothing_left()
