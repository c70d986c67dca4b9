"""Commits against flushes, on real servers and real devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from conftest import Desk

SHORT = "[workload]\nduration = 2\nwarmup = 0.5\n"
POSTGRES = '[engine]\nprovision = "process"\nallow_other_version = true\n'
MARIADB = f'{POSTGRES}kind = "mariadb"\n'
EXT4 = '[[storage]]\nkind = "ext4"\n'


def trials(desk: Desk, spec: str) -> list[dict[str, Any]]:
    """Run a spec; its trials in the order of the plan's cells."""
    done = desk.run(spec)
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    return sorted(bp.load_run(run).trials.to_dicts(), key=lambda row: row["cell"])


def test_each_commit_of_one_client_has_a_flush(desk: Desk) -> None:
    (row,) = trials(desk, EXT4 + POSTGRES + SHORT)
    assert row["durability"] == "durable"
    assert row["writing_commits"] >= row["committed"] > 100
    assert row["device_flushes"] >= row["writing_commits"] * 0.95
    # Each commit writes at least a page of WAL.
    assert row["device_written_bytes"] >= row["writing_commits"] * 8192
    ratio = row["device_written_bytes"] / row["writing_commits"]
    assert row["device_written_bytes_per_commit"] == pytest.approx(ratio)


def test_rates_of_the_device_add_up_to_its_counts(desk: Desk) -> None:
    (row,) = trials(desk, EXT4 + POSTGRES + SHORT)
    (run,) = desk.runs()
    metrics = bp.load_run(run).metrics
    flushes, before_s = 0.0, 0.0
    for at_s, rate in (
        metrics.filter(metrics["metric"] == "volume_flushes_per_s").sort("at_s")
    ).select("at_s", "value").rows():  # fmt: skip
        flushes += rate * (at_s - before_s)
        before_s = at_s
    # The readings end up to a second before the load does.
    assert row["device_flushes"] * 0.5 < flushes <= row["device_flushes"]


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        pytest.param(
            f"{EXT4}{POSTGRES}settings = {{ synchronous_commit = false }}\n",
            "synchronous_commit is off",
            id="asynchronous",
        ),
        pytest.param(
            f"{EXT4}{POSTGRES}settings = {{ fsync = false }}\n", "fsync is off", id="no-fsync"
        ),
        pytest.param(
            f"{EXT4}{MARIADB}settings = {{ innodb_flush_log_at_trx_commit = 0 }}\n",
            "innodb_flush_log_at_trx_commit is 0",
            id="log-not-flushed",
        ),
        pytest.param(
            f'{EXT4}mount_options = ["nobarrier"]\n{POSTGRES}',
            "the file system sends no flushes",
            id="no-barrier",
        ),
    ],
)
def test_commits_without_flushes_are_not_durable(desk: Desk, spec: str, named: str) -> None:
    (row,) = trials(desk, spec + SHORT)
    assert (row["trust"], row["durability"]) == ("caveat", "not durable")
    assert named in row["trust_reasons"]
    words = f"{row['writing_commits']} commits had {row['device_flushes']} flushes of the device"
    assert words in row["trust_reasons"]


def test_memory_is_not_durable_and_reading_tells_nothing(desk: Desk) -> None:
    storages = f'[[storage]]\nkind = "tmpfs"\n{EXT4}'
    rows = trials(desk, storages + POSTGRES + '[workload]\nkind = "select-only"\nduration = 2\n')
    told = {row["storage"]: (row["durability"], row["device_flushes"]) for row in rows}
    assert told["tmpfs"] == ("not durable", None)
    assert told["ext4"][0] == "unknown"


def test_clients_share_flushes_and_slap_counts_what_it_writes(desk: Desk) -> None:
    slap = '[workload]\nkind = "slap"\n[workload.slap]\nqueries_per_client = 500\n'
    loads = 'key = "autoincrement"\nload_type = ["write", "mixed", "update", "key"]\n'
    rows = trials(desk, f"{EXT4}{MARIADB}{slap}{loads}")
    told = {row["load_type"]: (row["writing_commits"], row["durability"]) for row in rows}
    # Of mysqlslap's list of eleven queries for `mixed`, six write: 45 times all and the first five.
    assert told == {
        "write": (500, "durable"),
        "mixed": (273, "durable"),
        # A row may have the values already.
        "update": (None, "unknown"),
        "key": (0, "unknown"),
    }
