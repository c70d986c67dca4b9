"""Bedplate measures PostgreSQL and MariaDB on file systems and hands back polars frames.

>>> import bedplate as bp
>>> spec = bp.Spec(
...     engine=bp.Postgres("13"),
...     storage=[bp.Ext4(), bp.Xfs()],
...     workload=bp.TpcB(scale=1, clients=8),
... )

``bp.plan(spec)`` shows what would be done, ``bp.run(spec)`` does it, and ``bp.load_run(path)``
opens what was done before.
"""

import warnings as _warnings

from bedplate._native import DEBUG_BUILD as _DEBUG_BUILD
from bedplate._native import __version__
from bedplate.exceptions import (
    BedplateError,
    DriverError,
    ProvisionError,
    RegressionError,
    SpecError,
    StoreError,
    WorkloadError,
)
from bedplate.published import published
from bedplate.results import Plan, Results, load_run, plan, run
from bedplate.spec import (
    Btrfs,
    Design,
    Directory,
    Ext2,
    Ext3,
    Ext4,
    F2fs,
    MariaDb,
    Nilfs2,
    Postgres,
    SelectOnly,
    SimpleUpdate,
    Slap,
    Spec,
    Tmpfs,
    TpcB,
    Xfs,
    Zfs,
)

__all__ = [
    "BedplateError",
    "Btrfs",
    "Design",
    "Directory",
    "DriverError",
    "Ext2",
    "Ext3",
    "Ext4",
    "F2fs",
    "MariaDb",
    "Nilfs2",
    "Plan",
    "Postgres",
    "ProvisionError",
    "RegressionError",
    "Results",
    "SelectOnly",
    "SimpleUpdate",
    "Slap",
    "Spec",
    "SpecError",
    "StoreError",
    "Tmpfs",
    "TpcB",
    "WorkloadError",
    "Xfs",
    "Zfs",
    "__version__",
    "load_run",
    "plan",
    "published",
    "run",
]

if _DEBUG_BUILD:
    _warnings.warn(
        "this is a debug build: nothing it measures may be shown without saying so",
        RuntimeWarning,
        stacklevel=2,
    )
