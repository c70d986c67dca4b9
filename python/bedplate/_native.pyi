# The native part: thin classes and functions, wrapped by results.py and cli.py.

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict, final

__version__: str
DEBUG_BUILD: bool

Phase: TypeAlias = Literal[
    "volume", "probe", "server", "load", "settle", "warmup", "measure", "verify", "teardown"
]
Trust: TypeAlias = Literal["sound", "caveat", "void"]

class RunStarted(TypedDict):
    event: Literal["run_started"]
    trials: int
    estimated_s: float

class PhaseStarted(TypedDict):
    event: Literal["phase_started"]
    trial: int
    cell: str
    phase: Phase
    expected_s: float | None

class Progress(TypedDict):
    event: Literal["progress"]
    fraction: float

class Second(TypedDict):
    event: Literal["second"]
    committed: int

class TrialEnded(TypedDict):
    event: Literal["trial_ended"]
    trial: int
    cell: str
    trust: Trust
    tps: float | None

class Note(TypedDict):
    event: Literal["note"]
    text: str

Event: TypeAlias = RunStarted | PhaseStarted | Progress | Second | TrialEnded | Note

@final
class Plan:
    """A spec with every default filled; `bedplate.plan` makes it."""

    @property
    def name(self) -> str:
        """Name of the study."""

    @property
    def plan_id(self) -> str:
        """SHA-256 of the plan's canonical JSON, in hexadecimal."""

    @property
    def unavailable(self) -> dict[str, str]:
        """Cells that cannot be made here and are left out: label to reason."""

    def to_json(self) -> str:
        """Return the plan as JSON; equal plans have equal texts."""

    def render(self) -> str:
        """Return the plan as text to read: cells, defaults, estimates."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Table:
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __len__(self) -> int: ...

@final
class Run:
    @staticmethod
    def open(path: Path | str) -> Run: ...
    @property
    def path(self) -> Path: ...
    @property
    def run_id(self) -> str: ...
    @property
    def complete(self) -> bool: ...
    @property
    def planned(self) -> int: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def environment(self) -> dict[str, str]: ...
    def server_log(self, trial: int) -> str: ...
    @property
    def trials(self) -> Table: ...
    @property
    def intervals(self) -> Table: ...
    @property
    def instances(self) -> Table: ...
    @property
    def latency(self) -> Table: ...
    @property
    def metrics(self) -> Table: ...

def plan(spec_json: str) -> Plan: ...
def plan_file(path: Path | str) -> Plan: ...
def run(plan: Plan, out: Path | str, observer: Callable[[Event], object] | None = None) -> Path: ...
def cli(args: list[str]) -> int: ...
