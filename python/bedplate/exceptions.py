"""Exceptions, one class for each thing a caller would do about an error.

.. code-block:: text

    BedplateError
    ├── SpecError         (ValueError)      change what was written
    ├── ProvisionError                      change the machine
    ├── DriverError                         look at the connection
    ├── WorkloadError                       look at the workload
    ├── StoreError                          look at the run directory
    └── RegressionError   (AssertionError)  the candidate is slower than the baseline

An interrupt stays :class:`KeyboardInterrupt`.
"""

from __future__ import annotations

import sys
from typing import ClassVar

__all__ = [
    "BedplateError",
    "DriverError",
    "ProvisionError",
    "RegressionError",
    "SpecError",
    "StoreError",
    "WorkloadError",
]


class BedplateError(Exception):
    """Root of all errors of this package.

    The text of an error is one line; a traceback shows the hint and the evidence after it.

    Parameters
    ----------
    message
        What went wrong: lower case, one line, no final period.
    hint
        The next step, where one is known.
    evidence
        Output of a tool or a server that shows the cause.

    Attributes
    ----------
    kind : str
        The class in one word: ``"spec"``, ``"provision"``, ``"driver"``, ``"workload"``,
        ``"store"`` or ``"regression"``.
    hint : str or None
        The next step.
    evidence : str or None
        What shows the cause.
    """

    kind: ClassVar[str] = "bedplate"
    hint: str | None
    evidence: str | None

    def __init__(self, message: str, hint: str | None = None, evidence: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.evidence = evidence
        if sys.version_info >= (3, 11):
            if evidence is not None:
                self.add_note(evidence)
            if hint is not None:
                self.add_note(f"hint: {hint}")


class SpecError(BedplateError, ValueError):
    """A spec, a plan file or the command line is wrong: change what was written."""

    kind = "spec"


class ProvisionError(BedplateError):
    """A volume or a server could not be made or kept: change the machine."""

    kind = "provision"


class DriverError(BedplateError):
    """The conversation with a server failed: look at the connection."""

    kind = "driver"


class WorkloadError(BedplateError):
    """The workload or its load step failed: look at the workload."""

    kind = "workload"


class StoreError(BedplateError):
    """A run directory could not be written or read: look at the directory."""

    kind = "store"


class RegressionError(BedplateError, AssertionError):
    """The candidate is slower than the baseline."""

    kind = "regression"
