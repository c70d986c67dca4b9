"""Progress of a run, as one line in a terminal or one element in a notebook."""

from __future__ import annotations

import html
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from bedplate._native import Event, TrialEnded

__all__ = ["Display", "State", "display"]

_REFRESH_S = 0.2
_BAR_WIDTH = 20
_MINUTE_S = 60
_HOUR_S = 3600
_SMALL_TPS = 100


class Display(Protocol):
    """Shows events; closed when the run has ended, however it ended."""

    def __call__(self, event: Event) -> None:
        """Show an event."""

    def close(self) -> None:
        """Leave the screen as it should stay."""


class State:
    """What the events so far add up to.

    Parameters
    ----------
    clock
        Seconds from any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = self._trial_started = clock()
        self._trials = 1
        self._ended = 0
        self._estimated_s = 0.0
        self._cell = ""
        self._phase = ""
        self._phase_fraction: float | None = None
        self._committed: int | None = None

    def update(self, event: Event) -> None:
        """Take in an event."""
        if event["event"] == "run_started":
            self._started = self._trial_started = self._clock()
            self._trials = max(event["trials"], 1)
            self._estimated_s = event["estimated_s"]
        elif event["event"] == "phase_started":
            if event["phase"] == "volume":
                self._trial_started = self._clock()
            self._cell, self._phase = event["cell"], event["phase"]
            self._phase_fraction = self._committed = None
        elif event["event"] == "progress":
            self._phase_fraction = min(max(event["fraction"], 0.0), 1.0)
        elif event["event"] == "second":
            self._committed = event["committed"]
        elif event["event"] == "trial_ended":
            self._ended += 1
            self._trial_started = self._clock()

    def trial_s(self) -> float:
        """Return the expected length of a trial in seconds, 0 when nothing is known."""
        if self._ended:
            return (self._trial_started - self._started) / self._ended
        return self._estimated_s / self._trials

    def fraction(self) -> float:
        """Return the part of the run that is done, from 0 to 1."""
        trial_s = self.trial_s()
        current = (self._clock() - self._trial_started) / trial_s if trial_s > 0 else 0.0
        if self._ended >= self._trials:
            return 1.0
        return (self._ended + min(current, 0.99)) / self._trials

    def remaining_s(self) -> float | None:
        """Return the expected time to the end in seconds, None when nothing is known."""
        trial_s = self.trial_s()
        if trial_s <= 0:
            return None
        return (1.0 - self.fraction()) * self._trials * trial_s

    def text(self) -> str:
        """Return the state in one line."""
        parts = [f"trial {min(self._ended + 1, self._trials)}/{self._trials} {self._cell}".rstrip()]
        if self._phase:
            done = "" if self._phase_fraction is None else f" {self._phase_fraction:.0%}"
            parts.append(self._phase + done)
        if self._committed is not None:
            parts.append(f"{self._committed:,} commits/s")
        remaining_s = self.remaining_s()
        if remaining_s is not None:
            parts.append(f"ETA {duration(remaining_s)}")
        return " · ".join(parts)


def duration(seconds: float) -> str:
    """Return a duration as one would say it."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h"


def tps(value: float | None) -> str:
    """Return a rate as it is shown; a void trial has none."""
    if value is None:
        return "—"
    return f"{value:,.1f}" if value < _SMALL_TPS else f"{value:,.0f}"


def ended(event: TrialEnded) -> str:
    """Return the one line that stays of a trial."""
    return f"trial {event['trial']} {event['cell']}: {tps(event['tps'])} tps, {event['trust']}"


class Terminal:
    """A bar in the last line of a terminal; only what stays, where the output is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._state = State()
        self._drawn = 0.0

    def __call__(self, event: Event) -> None:
        """Show an event."""
        self._state.update(event)
        if event["event"] == "note":
            self._stay(event["text"])
        elif event["event"] == "trial_ended":
            self._stay(ended(event))
        now = time.monotonic()
        if self._live and (event["event"] == "phase_started" or now - self._drawn >= _REFRESH_S):
            self._drawn = now
            filled = round(self._state.fraction() * _BAR_WIDTH)
            bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
            line = f"{bar} {self._state.text()}"
            self._write("\r" + line[: shutil.get_terminal_size().columns - 1] + "\x1b[K")

    def close(self) -> None:
        """Take the bar away."""
        if self._live:
            self._write("\r\x1b[K")

    def _stay(self, line: str) -> None:
        self._write(f"\r{line}\x1b[K\n" if self._live else line + "\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Notebook:
    """A bar in the output of a notebook's cell."""

    def __init__(self, show: Callable[..., Any]) -> None:
        self._state = State()
        self._notes: list[str] = []
        self._drawn = 0.0
        self._handle = show(_Html(self._html()), display_id=True)

    def __call__(self, event: Event) -> None:
        """Show an event."""
        self._state.update(event)
        if event["event"] == "note":
            self._notes.append(event["text"])
        now = time.monotonic()
        if now - self._drawn >= _REFRESH_S:
            self._drawn = now
            self._handle.update(_Html(self._html()))

    def close(self) -> None:
        """Leave the notes."""
        self._handle.update(
            _Html("".join(f"<div>{html.escape(note)}</div>" for note in self._notes))
        )

    def _html(self) -> str:
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self._notes)
        return (
            f'{notes}<progress max="1" value="{self._state.fraction():.3f}"></progress> '
            f"<span>{html.escape(self._state.text())}</span>"
        )


class _Html:
    """What a notebook shows as HTML."""

    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return self._text


def display() -> Display:
    """Return the display that suits where this process runs."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    if shell is not None and type(shell).__name__ == "ZMQInteractiveShell":
        from IPython.display import (  # pyright: ignore  # noqa: PGH003, PLC0415
            display as show,  # pyright: ignore[reportUnknownVariableType]
        )

        return Notebook(show)  # pyright: ignore[reportUnknownArgumentType]
    return Terminal(sys.stderr)
