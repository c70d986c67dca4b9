"""The numbers of the published studies that the specs repeat."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

_NUMBERS = Path(__file__).parent / "data" / "published.csv"


def published(name: str) -> pl.DataFrame:
    """Return what a study published, one row a number.

    Parameters
    ----------
    name
        Name of the study, which is also that of its spec: ``"mariadb-optane"``,
        ``"pgbench-four-schemas"`` or ``"postgresql-on-zfs"``.

    Returns
    -------
    polars.DataFrame
        Columns ``study``, ``engine``, ``engine_version``, ``workload``, ``scale``, ``clients``,
        ``storage_label``, ``filesystem``, ``layout``, ``options``, ``device``, ``metric``, ``unit``
        and ``value``. Numbers and labels are as they were printed; what was not said is null. The
        metric ``qps`` of mysqlslap is what Phoronix prints, the rate of one client, to be put
        beside ``pts_queries_per_second``.

    Raises
    ------
    ValueError
        No study of that name has its numbers here.

    Examples
    --------
    >>> import bedplate as bp
    >>> optane = bp.published("mariadb-optane")
    >>> optane.filter(storage_label="EXT4 900p", clients=16)["value"].to_list()
    [4992.0]
    """
    import polars as pl  # noqa: PLC0415 - takes longer than the rest of the package

    types = {"scale": pl.UInt32, "clients": pl.UInt32, "value": pl.Float64}
    numbers = pl.read_csv(_NUMBERS, schema_overrides=types)
    studies = {frame["study"][0]: frame for frame in numbers.partition_by("study")}
    if name not in studies:
        raise ValueError(f"{name!r} has no published numbers here (known: {', '.join(studies)})")
    return studies[name]
