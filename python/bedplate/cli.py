"""The command ``bedplate``."""

from __future__ import annotations

import signal
import sys

from bedplate import _native

__all__ = ["main"]


def main() -> int:
    """Run the command line.

    Returns
    -------
    int
        Exit code: 0 done or pass, 1 regressed, 2 usage or a bad spec, 3 inconclusive, 4 invalid or
        a void trial, 5 nothing could be measured, 130 interrupted.
    """
    # The command line handles interrupts itself, where Python would wait until it returns.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.cli(["bedplate", *sys.argv[1:]])
