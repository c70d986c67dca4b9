"""Results read from run directories, the exceptions, and the edges of plan and run."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING

import polars as pl
import pytest

import bedplate as bp
from bedplate import _native, _progress, exceptions

if TYPE_CHECKING:
    from pathlib import Path


class TestFrames:
    def test_dtypes(self, quick: Path) -> None:
        results = bp.load_run(quick)
        expected = {
            "run": pl.String,
            "trial": pl.UInt32,
            "storage": pl.String,
            "fillfactor": pl.String,
            "scale": pl.UInt32,
            "instances": pl.UInt32,
            "clients": pl.UInt32,
            "trust": pl.String,
            "tps": pl.Float64,
            "committed": pl.UInt64,
            "service_time_ms_p99": pl.Float64,
            "database_bytes": pl.UInt64,
            "error": pl.String,
        }
        assert {name: results.trials.schema[name] for name in expected} == expected
        assert results.intervals.schema == {
            "run": pl.String,
            "trial": pl.UInt32,
            "phase": pl.String,
            "start_s": pl.Float64,
            "length_s": pl.Float64,
            "committed": pl.UInt64,
            "retried": pl.UInt64,
            "failed": pl.UInt64,
            "live_clients": pl.UInt32,
            "tps": pl.Float64,
            "service_time_ms_p50": pl.Float64,
            "service_time_ms_p99": pl.Float64,
            "service_time_ms_max": pl.Float64,
        }
        assert results.instances.schema == {
            "run": pl.String,
            "trial": pl.UInt32,
            "instance": pl.UInt32,
            "tps": pl.Float64,
            "committed": pl.UInt64,
            "retried": pl.UInt64,
            "failed": pl.UInt64,
            "started_s": pl.Float64,
            "window_s": pl.Float64,
            "service_time_ms_mean": pl.Float64,
            "service_time_ms_p50": pl.Float64,
            "service_time_ms_p90": pl.Float64,
            "service_time_ms_p95": pl.Float64,
            "service_time_ms_p99": pl.Float64,
            "service_time_ms_p999": pl.Float64,
            "service_time_ms_max": pl.Float64,
        }
        assert results.latency.schema == {
            "run": pl.String,
            "trial": pl.UInt32,
            "phase": pl.String,
            "service_time_ms": pl.Float64,
            "count": pl.UInt64,
        }
        assert results.metrics.schema == {
            "run": pl.String,
            "trial": pl.UInt32,
            "at_s": pl.Float64,
            "metric": pl.String,
            "value": pl.Float64,
        }

    def test_values(self, quick: Path) -> None:
        results = bp.load_run(quick)
        assert results.complete
        assert results.path == quick
        assert results.trials["storage"].to_list() == ["ext4", "xfs", "xfs", "ext4"]
        assert results.trials["block"].to_list() == [0, 0, 1, 1]
        assert results.trials["tps"].to_list() == [1400.0, 1400.0, 1400.0, None]
        assert results.trials["engine_version"].unique().to_list() == ["13.23"]
        assert results.trials is results.trials, "built once"

    def test_a_void_trial_has_no_number(self, quick: Path) -> None:
        void = bp.load_run(quick).trials.filter(pl.col("trust") == "void")
        numbers = void.select("tps", pl.selectors.starts_with("service_time_ms"))
        assert void["trust_reasons"].to_list() == ["the server died"]
        assert set(numbers.row(0)) == {None}

    def test_quantiles_again_from_latency(self, quick: Path) -> None:
        results = bp.load_run(quick)
        buckets = results.latency.filter(pl.col("trial") == 0)
        total = buckets["count"].sum()
        assert total == results.trials["committed"][0]
        for name, quantile in [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)]:
            rank = math.ceil(total * quantile)
            upper = buckets.filter(pl.col("count").cum_sum() >= rank)["service_time_ms"][0]
            assert upper == results.trials[f"service_time_ms_{name}"][0]

    def test_intervals_add_up(self, quick: Path) -> None:
        results = bp.load_run(quick)
        sums = (
            results.intervals.filter(pl.col("phase") == "measure")
            .group_by("trial", maintain_order=True)
            .agg(pl.col("committed").sum())
        )
        assert sums["committed"].to_list() == results.trials["committed"].to_list()

    def test_parquet_holds_the_same(self, quick: Path) -> None:
        results = bp.load_run(quick)
        for name in ("trials", "intervals", "latency", "metrics"):
            stored = pl.read_parquet(quick / f"{name}.parquet")
            assert stored.equals(getattr(results, name)), name


class TestDirectory:
    def test_killed(self, killed: Path) -> None:
        results = bp.load_run(killed)
        assert not results.complete
        assert len(results.trials) == 2
        state = "2 of 4 trials, not complete: 2 sound; cells not available here: 1"
        assert repr(results) == f"Results({str(killed)!r}, {state})"

    def test_nothing_finished(self, killed: Path) -> None:
        for record in killed.glob("trials/*/record.json"):
            record.unlink()
        results = bp.load_run(killed)
        assert len(results.trials) == 0
        assert results.trials.schema["tps"] == pl.Float64
        assert "0 of 4 trials" in repr(results)
        assert "<table>" in results._repr_html_()

    def test_path_as_text(self, quick: Path) -> None:
        assert bp.load_run(str(quick)).run_id == bp.load_run(quick).run_id

    def test_plan_environment_log(self, quick: Path) -> None:
        results = bp.load_run(quick)
        assert json.loads(results.plan.to_json())["name"] == "quick"
        assert len(results.plan.plan_id) == 64
        assert results.plan == bp.load_run(quick).plan
        assert hash(results.plan) == hash(bp.load_run(quick).plan)
        shown = 'Plan("quick", cells=2, unavailable=1, trials=4, plan_id='
        assert repr(results.plan).startswith(shown)
        assert results.plan.unavailable == {
            "zfs/fillfactor=90": "zfs needs pools, but neither OpenZFS nor zfs-fuse is installed"
        }
        assert results.environment["kernel"] == "6.18.0"
        assert results.server_log(0) == "ready to accept connections\n"
        with pytest.raises(bp.StoreError, match="cannot read"):
            results.server_log(99)

    def test_no_run_directory(self, tmp_path: Path) -> None:
        with pytest.raises(bp.StoreError, match="is not a run directory") as caught:
            bp.load_run(tmp_path)
        assert caught.value.kind == "store"
        assert caught.value.hint is not None

    def test_another_version(self, quick: Path) -> None:
        path = quick / "run.json"
        path.write_text(path.read_text().replace('"run_version": 1', '"run_version": 9'))
        with pytest.raises(bp.StoreError, match="of version 9, this is version 1"):
            bp.load_run(quick)

    def test_a_finished_trial_is_never_torn(self, quick: Path) -> None:
        path = quick / "trials" / "t0000" / "intervals.jsonl"
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(bp.StoreError, match=r"intervals\.jsonl`, line 4"):
            bp.load_run(quick)

    def test_a_missing_line_makes_a_trial_void(self, quick: Path) -> None:
        path = quick / "trials" / "t0000" / "intervals.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:-1]))
        trials = bp.load_run(quick).trials
        assert trials["trust"][0] == "void"
        assert trials["tps"][0] is None


class TestArrow:
    def test_polars(self, quick: Path) -> None:
        results = bp.load_run(quick)
        assert pl.DataFrame(results).equals(results.trials)

    def test_pyarrow(self, quick: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        results = bp.load_run(quick)
        table = pyarrow.table(results)
        assert table.num_rows == 4
        assert table.column("tps").to_pylist() == results.trials["tps"].to_list()
        assert table.schema.field("storage").type == pyarrow.large_string()
        table.validate(full=True)

    def test_each_stream_is_its_own(self, quick: Path) -> None:
        results = bp.load_run(quick)
        first, second = results.__arrow_c_stream__(), results.__arrow_c_stream__(None)
        assert first is not second
        assert "arrow_array_stream" in repr(first)
        # Never read: the capsule itself has to free the stream.
        del first, second

    def test_the_stream_outlives_the_results(self, quick: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        reader = pyarrow.RecordBatchReader.from_stream(bp.load_run(quick))
        assert reader.read_all().num_rows == 4

    def test_empty(self, killed: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        for record in killed.glob("trials/*/record.json"):
            record.unlink()
        table = pyarrow.table(bp.load_run(killed))
        assert table.num_rows == 0
        assert "tps" in table.column_names


class TestHtml:
    def test_trust_is_words(self, quick: Path) -> None:
        text = bp.load_run(quick)._repr_html_()
        state = "4 of 4 trials, complete: 3 sound, 1 void; cells not available here: 1"
        assert f"quick: {state}" in text
        assert "void</span>" in text or "void: the server died</span>" in text
        assert text.count("<td>1,400</td>") == 3
        assert "<td>—</td>" in text
        assert "color" not in text

    def test_escaped(self, quick: Path) -> None:
        path = quick / "trials" / "t0003" / "record.json"
        path.write_text(path.read_text().replace("the server died", "<script>&"))
        text = bp.load_run(quick)._repr_html_()
        assert "<script>" not in text
        assert "&lt;script&gt;&amp;" in text

    def test_repr(self, quick: Path) -> None:
        state = "4 of 4 trials, complete: 3 sound, 1 void; cells not available here: 1"
        assert repr(bp.load_run(quick)) == f"Results({str(quick)!r}, {state})"


class TestExceptions:
    def test_tree(self) -> None:
        classes = [getattr(exceptions, name) for name in exceptions.__all__]
        assert {cls.__name__: cls.__mro__[1].__name__ for cls in classes} == {
            "BedplateError": "Exception",
            "SpecError": "BedplateError",
            "ProvisionError": "BedplateError",
            "DriverError": "BedplateError",
            "WorkloadError": "BedplateError",
            "StoreError": "BedplateError",
            "RegressionError": "BedplateError",
        }
        assert issubclass(bp.SpecError, ValueError)
        assert issubclass(bp.RegressionError, AssertionError)
        assert len({cls.kind for cls in classes}) == len(classes)
        assert all(getattr(bp, name) is getattr(exceptions, name) for name in exceptions.__all__)

    def test_the_text_is_short_and_the_traceback_is_not(self) -> None:
        error = bp.ProvisionError("no space", hint="free some", evidence="df says 0")
        assert str(error) == "no space"
        if sys.version_info >= (3, 11):
            shown = traceback.format_exception_only(error)
            assert shown[1:] == ["df says 0\n", "hint: free some\n"]

    def test_pickled(self) -> None:
        error = pickle.loads(pickle.dumps(bp.SpecError("a", "b", "c")))  # noqa: S301
        assert (str(error), error.hint, error.evidence, error.kind) == ("a", "b", "c", "spec")


class TestPlan:
    def test_a_plan_is_its_own_plan(self, quick: Path) -> None:
        plan = bp.load_run(quick).plan
        assert bp.plan(plan) is plan

    def test_a_bad_mapping(self) -> None:
        with pytest.raises(bp.SpecError):
            bp.plan({"nonsense": 1})
        with pytest.raises(bp.SpecError, match="cannot be written as JSON"):
            bp.plan({"name": object()})

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(bp.SpecError):
            bp.plan(tmp_path / "none.toml")


class TestProgress:
    EVENTS: tuple[_native.Event, ...] = (
        {"event": "run_started", "trials": 2, "estimated_s": 20.0},
        {"event": "phase_started", "trial": 0, "cell": "ext4", "phase": "measure", "expected_s": 5},
        {"event": "progress", "fraction": 0.5},
        {"event": "second", "committed": 1234},
    )

    def test_state(self) -> None:
        now = 0.0
        state = _progress.State(lambda: now)
        for event in self.EVENTS:
            state.update(event)
        now = 5.0
        assert state.fraction() == 0.25
        assert state.text() == "trial 1/2 ext4 · measure 50% · 1,234 commits/s · ETA 15 s"
        now = 8.0
        state.update(
            {"event": "trial_ended", "trial": 0, "cell": "ext4", "trust": "sound", "tps": 9.0}
        )
        assert state.remaining_s() == 8.0

    def test_no_terminal_gets_what_stays(self, capsys: pytest.CaptureFixture[str]) -> None:
        display = _progress.display()
        for event in self.EVENTS:
            display(event)
        display({"event": "note", "text": "watch out"})
        display({"event": "trial_ended", "trial": 0, "cell": "ext4", "trust": "void", "tps": None})
        display.close()
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err == "watch out\ntrial 0 ext4: — tps, void\n"

    def test_notebook(self) -> None:
        shown: list[str] = []

        class Handle:
            def update(self, element: object) -> None:
                shown.append(element._repr_html_())  # type: ignore[attr-defined]

        def show(element: object, *, display_id: bool) -> Handle:
            assert display_id
            Handle().update(element)
            return Handle()

        display = _progress.Notebook(show)
        for event in self.EVENTS:
            display(event)
        display({"event": "note", "text": "a < b"})
        display.close()
        assert "<progress" in shown[0]
        assert shown[-1] == "<div>a &lt; b</div>"


class TestImport:
    def test_polars_is_not_imported(self) -> None:
        code = "import sys, bedplate as bp; print('polars' in sys.modules, bp.__version__)"
        command = [sys.executable, "-W", "ignore", "-c", code]
        shown = subprocess.run(command, check=True, capture_output=True, text=True)
        assert shown.stdout.split() == ["False", bp.__version__]

    def test_a_debug_build_says_so(self) -> None:
        command = [sys.executable, "-W", "error", "-c", "import bedplate"]
        shown = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (shown.returncode != 0) == _native.DEBUG_BUILD
        assert ("this is a debug build" in shown.stderr) == _native.DEBUG_BUILD
