"""Both engines from one spec, and slap: real servers, real file systems, counts that must hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bedplate as bp

if TYPE_CHECKING:
    import polars as pl

COMMAND = Path(sys.executable).with_name("bedplate")


def run(tmp_path: Path, spec: bp.Spec) -> pl.DataFrame:
    """Run a spec with the installed command; return its trials, none of them void."""
    path = tmp_path / "spec.json"
    path.write_text(spec.to_json())
    out = tmp_path / "runs"
    done = subprocess.run(
        [COMMAND, "run", path, "--out", out, "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (directory,) = out.iterdir()
    return bp.load_run(directory).trials


def test_one_spec_measures_both_engines(tmp_path: Path) -> None:
    # The sums and the history of each are checked by the trial itself: not void means they hold.
    trials = run(
        tmp_path,
        bp.Spec(
            engine=[bp.Postgres("13"), bp.MariaDb("10.3", allow_other_version=True)],
            storage=bp.Ext4(),
            workload=bp.TpcB(scale=1, clients=4, warmup=1, duration=2),
        ),
    )
    assert trials["engine_kind"].to_list() == ["postgres", "mariadb"]
    assert trials["engine_version"][0].startswith("13.")
    assert trials["engine_version"][1].startswith("10.5.")
    assert (trials["committed"] > 0).all()
    assert trials["failed"].to_list() == [0, 0]
    # What ran in place of 10.3 is said with its number.
    assert trials["trust"][1] == "caveat"
    assert "ran where 10.3 was asked for" in trials["trust_reasons"][1]
    assert trials["queries_per_second"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("slap", "queries"),
    [
        # 1,000 queries a client is 545 INSERT and 455 SELECT; the rows are counted by the trial.
        (bp.Slap(clients=3, key="autoincrement", queries_per_client=1000), 3 * 1000),
        # mysqlslap would send 9 of these 10.
        (bp.Slap(clients=3, number_of_queries=10), 10),
        (bp.Slap(clients=2, key="guid", queries_per_client=50, iterations=2), 2 * 2 * 50),
        (bp.Slap(clients=2, load_type="write", queries_per_client=40, commit_every=7), 80),
        (bp.Slap(clients=2, queries_per_client=30, detach_every=10), 60),
        (
            bp.Slap(clients=2, key="autoincrement", protocol="prepared", queries_per_client=100),
            200,
        ),
    ],
    ids=["phoronix", "exact-split", "guid", "commit", "detach", "prepared"],
)
def test_slap_sends_exactly_what_was_asked_for(tmp_path: Path, slap: bp.Slap, queries: int) -> None:
    engine = bp.MariaDb("10.3", allow_other_version=True, provision="process")
    trials = run(tmp_path, bp.Spec(engine=engine, storage=bp.Tmpfs(), workload=slap))
    (row,) = trials.to_dicts()
    assert row["committed"] == queries
    assert row["failed"] == 0
    assert row["queries_per_second"] == pytest.approx(queries / row["window_s"])
    # Connecting and closing are in the window that mysqlslap times, so its rate is the lower one.
    iterations = slap.iterations or 1
    average_s = 1000 / row["pts_queries_per_second"]
    assert average_s >= row["window_s"] / iterations
