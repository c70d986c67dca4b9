"""Warm and cold caches, as the devices saw them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from conftest import Desk

READS = bp.SelectOnly(scale=5, clients=2, transactions=300, cache=["warm", "cold"])
# Every start of a container may have another port.
POSTGRES = bp.Postgres(transport="tcp", settings={"shared_buffers": "16MB"})
# InnoDB's pool holds all that was loaded, until the server ends.
MARIADB = bp.MariaDb(provision="process", allow_other_version=True)


@pytest.mark.parametrize(
    ("site", "engine", "storage"),
    [
        pytest.param("local", POSTGRES, bp.Ext4(), id="local-postgres-ext4"),
        pytest.param("local", MARIADB, bp.Xfs(), id="local-mariadb-xfs"),
        pytest.param("docker", POSTGRES, bp.Btrfs(), id="docker-postgres-btrfs"),
    ],
)
def test_a_cold_cell_reads_from_its_devices(
    desk: Desk, site: str, engine: bp.Postgres | bp.MariaDb, storage: bp.Ext4 | bp.Xfs | bp.Btrfs
) -> None:
    spec = bp.Spec(site=site, storage=storage, engine=engine, workload=READS)
    done = desk.run(spec.to_json(), name="spec.json")
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    rows = {row["cache"]: row for row in bp.load_run(run).trials.to_dicts()}
    for row in rows.values():
        assert row["trust"] != "void", row["trust_reasons"]
        assert row["committed"] == 600
        assert not any("cold" in reason for reason in row["trust_reasons"])
    # 500,000 accounts are some 9,000 pages, and most of 600 draws find one that nobody read yet.
    assert rows["warm"]["device_read_bytes"] < 400 * 8192
    assert rows["cold"]["device_read_bytes"] > 400 * 8192
    assert rows["cold"]["cached_share"] <= 0.01
    if engine is POSTGRES:
        assert rows["warm"]["cached_share"] > 0.9
    desk.assert_nothing_left()
