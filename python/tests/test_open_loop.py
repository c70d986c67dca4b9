"""Loads at a rate, on real servers that stall, keep up and do not."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from conftest import Desk

CONTAINER = bp.Postgres(provision="container")


def rows_of(desk: Desk) -> list[dict[str, Any]]:
    return bp.load_run(desk.runs()[-1]).trials.to_dicts()


def run(desk: Desk, workload: bp.SelectOnly | bp.TpcB) -> dict[str, Any]:
    spec = bp.Spec(storage=bp.Ext4(), engine=CONTAINER, workload=workload)
    done = desk.run(spec.to_json(), name="spec.json")
    assert done.returncode == 0, done.stderr
    (row,) = rows_of(desk)
    assert row["trust"] != "void", row["trust_reasons"]
    return row


@pytest.mark.soak
def test_a_stall_is_seen_by_those_who_would_have_met_it(desk: Desk) -> None:
    load = bp.SelectOnly(rate=500, clients=4, duration=20, warmup=0, protocol="prepared")
    spec = bp.Spec(storage=bp.Ext4(), engine=CONTAINER, workload=load)
    child = desk.start(spec.to_json(), "spec.json")
    desk.wait_for(lambda: desk.runs() and desk.seconds() >= 5)
    subprocess.run(["docker", "pause", desk.resource_name()], check=True, capture_output=True)
    time.sleep(1)
    subprocess.run(["docker", "unpause", desk.resource_name()], check=True, capture_output=True)
    assert child.wait(60) == 0, desk.said()
    (row,) = rows_of(desk)
    assert row["overloaded"] is False
    # Poisson's standard deviation of 10,000 is 100.
    assert abs(row["scheduled"] - 10_000) < 500
    assert row["scheduled"] - 10 <= row["committed"] <= row["scheduled"]
    # 500 of 10,000 were to start within the second; 1 % waited for more than four fifths of it.
    assert row["response_time_ms_p99"] > 500
    assert row["service_time_ms_p99"] < 100
    assert row["lag_ms_max"] == pytest.approx(1000, abs=150)
    desk.assert_nothing_left()


def test_a_rate_beyond_the_server_has_no_response_times(desk: Desk) -> None:
    row = run(desk, bp.TpcB(rate=200_000, clients=4, duration=3, warmup=0))
    assert row["overloaded"] is True
    assert any(reason.startswith("overloaded: of ") for reason in row["trust_reasons"].split("; "))
    assert row["trust"] == "caveat"
    assert row["response_time_ms_p99"] is None
    assert row["lag_ms_mean"] is None
    assert row["service_time_ms_p99"] > 0
    assert row["committed"] < row["scheduled"] / 10


@pytest.mark.soak
def test_half_of_what_a_closed_loop_reaches_is_served(desk: Desk) -> None:
    common: dict[str, Any] = {"clients": 4, "duration": 9, "warmup": 1, "protocol": "prepared"}
    closed = run(desk, bp.SelectOnly(**common))
    assert closed["rate_per_s"] is None
    assert closed["scheduled"] is None
    assert closed["overloaded"] is None
    assert closed["response_time_ms_p50"] is None
    rate = closed["tps"] / 2
    rows = [run(desk, bp.SelectOnly(rate=rate, **common)) for _ in range(2)]
    for row in rows:
        assert row["overloaded"] is False
        assert row["committed"] >= 0.99 * row["scheduled"]
        assert row["tps"] == pytest.approx(rate, rel=0.05)
        # A response is a lag and a service.
        assert row["response_time_ms_mean"] == pytest.approx(
            row["lag_ms_mean"] + row["service_time_ms_mean"], rel=0.01
        )
    # The schedule is the seed's, not the clock's.
    assert rows[0]["scheduled"] == rows[1]["scheduled"]
    print(f"lag p99 {rows[0]['lag_ms_p99']:.3f} ms at {rate:.0f} per second")


def test_even_arrivals_are_as_many_as_asked_for(desk: Desk) -> None:
    row = run(desk, bp.SelectOnly(rate=300, spacing="even", clients=3, threads=2, duration=3))
    assert abs(row["scheduled"] - 900) <= 2
    assert row["spacing"] == "even"
