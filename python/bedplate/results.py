"""Planning, running, and what comes of it."""

from __future__ import annotations

import html
import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from bedplate import _native, _progress
from bedplate.exceptions import SpecError
from bedplate.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import polars as pl

__all__ = ["Plan", "Results", "load_run", "plan", "run"]

Plan = _native.Plan

AnySpec: TypeAlias = "Spec | Mapping[str, Any] | str | os.PathLike[str] | Plan"

_HTML_ROWS = 100

# Shown when their values differ; engine_version, storage, clients and scale are always shown.
_HTML_VARYING = ("engine", "workload", "protocol", "threads")


def plan(spec: AnySpec) -> Plan:
    """Fill every default of a spec and check it, without touching anything.

    Parameters
    ----------
    spec
        A :class:`Spec`, a mapping of the same form as a spec file, the path of a spec file (TOML or
        JSON), or a plan, which is returned as it is.

    Returns
    -------
    Plan
        The plan; ``render()`` gives it as text, ``to_json()`` for machines, and ``plan_id`` is its
        content hash. ``unavailable`` has the cells that cannot be made here, with reasons; they are
        left out.

    Raises
    ------
    SpecError
        A key is unknown, a value is wrong or impossible, or two contradict each other.
    """
    if isinstance(spec, Plan):
        return spec
    if isinstance(spec, (str, os.PathLike)):
        return _native.plan_file(os.fspath(spec))
    try:
        text = spec.to_json() if isinstance(spec, Spec) else json.dumps(spec, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"the spec cannot be written as JSON: {error}") from error
    return _native.plan(text)


def run(
    spec: AnySpec,
    *,
    progress: bool | Callable[[_native.Event], object] = True,
    out: str | os.PathLike[str] = "runs",
) -> Results:
    """Execute a spec: every trial of its plan, from fresh storage.

    Parameters
    ----------
    spec
        What :func:`plan` takes.
    progress
        Whether to show progress, with phase and expected time to the end: in the last line of a
        terminal or below a notebook's cell. A callable gets each event as a dict instead.
    out
        Directory below which the run's own directory is made.

    Returns
    -------
    Results
        What was measured. Trials that cannot be trusted are in it as ``void``, without numbers.

    Raises
    ------
    SpecError
        The spec is wrong; nothing was made.
    ProvisionError
        A volume or a server could not be made, or no cell of the spec is available here.
    DriverError, WorkloadError, StoreError
        As their names say.
    KeyboardInterrupt
        The user interrupted. Everything of ours has been torn down; the message names the
        directory that :func:`load_run` opens with the trials finished until then.
    """
    planned = plan(spec)
    if callable(progress):
        return load_run(_native.run(planned, os.fspath(out), progress))
    if not progress:
        return load_run(_native.run(planned, os.fspath(out)))
    display = _progress.display()
    try:
        path = _native.run(planned, os.fspath(out), display)
    finally:
        display.close()
    return load_run(path)


def load_run(path: str | os.PathLike[str]) -> Results:
    """Read a run directory, complete or not.

    Parameters
    ----------
    path
        The directory, as :func:`run` or ``bedplate run`` made it.

    Returns
    -------
    Results
        Its finished trials.

    Raises
    ------
    StoreError
        It is not a run directory, is of another version, or is damaged.
    """
    return Results(_native.Run.open(os.fspath(path)))


class Results:
    """What a run measured, as tables.

    Each table is a :class:`polars.DataFrame`, built when it is first asked for; columns with a unit
    end in it. :func:`run` and :func:`load_run` make results. Any reader of Arrow's C stream
    interface takes them directly, as the table ``trials``.
    """

    def __init__(self, native: _native.Run) -> None:
        self._native = native

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._native.path

    @property
    def run_id(self) -> str:
        """Identifier of the run."""
        return self._native.run_id

    @property
    def complete(self) -> bool:
        """Whether every planned trial is finished."""
        return self._native.complete

    @property
    def plan(self) -> Plan:
        """What was to be executed."""
        return self._native.plan

    @property
    def environment(self) -> dict[str, str]:
        """Machine and software before the run: name to value, ``unknown`` for what is not seen."""
        return self._native.environment

    @cached_property
    def trials(self) -> pl.DataFrame:
        """One row a finished trial.

        ``tps`` is committed transactions of the measured window by its length;
        ``service_time_ms_*`` are nearest-rank quantiles of done − started. Both are null where
        ``trust`` is ``void``, and a quantile q of n values also where n·(1 − q) < 10. Each factor
        that varies has a column.
        """
        return _frame(self._native.trials)

    @cached_property
    def intervals(self) -> pl.DataFrame:
        """One row a second of warm-up and measuring, in order; all instances together."""
        return _frame(self._native.intervals)

    @cached_property
    def instances(self) -> pl.DataFrame:
        """One row an instance of the workload in a trial; ``tps`` adds up to that of the trial.

        A workload without `instances` is one. ``started_s`` is counted from the start of the load.
        """
        return _frame(self._native.instances)

    @cached_property
    def latency(self) -> pl.DataFrame:
        """One row a bucket of a trial's histogram: upper end ``service_time_ms``, and ``count``."""
        return _frame(self._native.latency)

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """One row a reading: ``at_s`` after the start of the load, ``metric``, ``value``."""
        return _frame(self._native.metrics)

    def server_log(self, trial: int) -> str:
        """Return the server's log of a trial.

        Parameters
        ----------
        trial
            Number of the trial, as in the tables.

        Returns
        -------
        str
            The log; empty where the server's log cannot be had.

        Raises
        ------
        StoreError
            The trial has no log.
        """
        return self._native.server_log(trial)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the table ``trials`` over Arrow's C stream interface."""
        return self._native.trials.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        """Return the path and what is in it, in one line."""
        return f"Results({str(self.path)!r}, {self._summary()})"

    def _repr_html_(self) -> str:
        rows = self.trials.head(_HTML_ROWS).to_dicts()
        columns = self._html_columns()
        head = "".join(f"<th>{html.escape(_title(column))}</th>" for column in columns)
        body = "".join(
            "<tr>" + "".join(_cell(column, row) for column in columns) + "</tr>" for row in rows
        )
        more = len(self.trials) - len(rows)
        caption = f"{html.escape(self.plan.name)}: {html.escape(self._summary())}"
        foot = f"<div>and {more} more trials in <code>.trials</code></div>" if more > 0 else ""
        return (
            f'<table><caption style="text-align:left">{caption}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"
        )

    def _summary(self) -> str:
        counts = dict.fromkeys(("sound", "caveat", "void"), 0)
        for level in self.trials["trust"]:
            counts[level] += 1
        trust = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
        state = "complete" if self.complete else "not complete"
        trials = f"{len(self.trials)} of {self._native.planned} trials, {state}"
        unavailable = len(self.plan.unavailable)
        left_out = f"; cells not available here: {unavailable}" if unavailable else ""
        return f"{trials}: {trust}{left_out}" if trust else f"{trials}{left_out}"

    def _html_columns(self) -> list[str]:
        names = self.trials.columns
        factors = names[names.index("storage") + 1 : names.index("workload")]
        varying = [name for name in _HTML_VARYING if self.trials[name].n_unique() > 1]
        return [
            *("trial", "block", "storage", "engine_version", "scale", "clients"),
            *varying,
            *factors,
            *("tps", "service_time_ms_p50", "service_time_ms_p99", "failed", "trust"),
        ]


def _frame(table: _native.Table) -> pl.DataFrame:
    import polars as pl  # noqa: PLC0415 - takes longer than the rest of the package

    return pl.DataFrame(table)


def _title(column: str) -> str:
    titles = {
        "engine_version": "version",
        "service_time_ms_p50": "p50 ms",
        "service_time_ms_p99": "p99 ms",
    }
    return titles.get(column, column)


def _cell(column: str, row: Mapping[str, Any]) -> str:
    """Return a cell; trust is said in words and by weight, so that it also reads in grey."""
    value = row[column]
    if column == "trust":
        style = "" if value == "sound" else ' style="font-weight:bold"'
        reasons = html.escape(row["trust_reasons"])
        text = f"{value}: {reasons}" if reasons else str(value)
        return f'<td style="text-align:left"><span{style}>{text}</span></td>'
    if value is None:
        text = "—"
    elif column == "tps":
        text = _progress.tps(value)
    elif isinstance(value, float):
        text = f"{value:,.2f}"
    else:
        text = html.escape(str(value))
    return f"<td>{text}</td>"
