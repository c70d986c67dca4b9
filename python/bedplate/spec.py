"""What to measure, as typed values.

Each class here stands for one table of a spec file, with the same keys, and a scalar that may vary
takes a list and becomes a factor:

>>> spec = Spec(
...     engine=Postgres("13"),
...     storage=[Ext4(), Xfs(size="4GiB")],
...     workload=TpcB(scale=10, clients=[1, 8]),
... )
>>> spec.to_dict()["workload"]
{'kind': 'tpcb', 'scale': 10, 'clients': [1, 8]}

Nothing is checked here and no default is filled: `bedplate.plan` does both, with the same messages
as for a spec file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from os import PathLike, fspath
from typing import ClassVar, Literal, TypeAlias, TypeVar, Union, cast

__all__ = [
    "Btrfs",
    "Design",
    "Directory",
    "Engine",
    "Ext2",
    "Ext3",
    "Ext4",
    "F2fs",
    "Levels",
    "MariaDb",
    "Nilfs2",
    "Postgres",
    "SelectOnly",
    "SimpleUpdate",
    "Spec",
    "Storage",
    "Tmpfs",
    "TpcB",
    "Workload",
    "Xfs",
    "Zfs",
]

T = TypeVar("T")

# The next form is the only one that is generic at run time in Python 3.10.
Levels = Union[T, Sequence[T]]  # noqa: UP007
"""One value, or a list of values that become the levels of a factor."""

Scalar: TypeAlias = "str | int | float | bool"
Size: TypeAlias = "str | int"
Seconds: TypeAlias = "str | float"
Path: TypeAlias = "str | PathLike[str]"
Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class _Table:
    """A table of the spec: its fields are the keys, and None is a key that is left out."""

    kind: ClassVar[str | None] = None

    def to_dict(self) -> dict[str, Json]:
        """Return the keys that were given, in the form of a spec file."""
        table: dict[str, Json] = {}
        if self.kind is not None:
            table["kind"] = self.kind
        # Only dataclasses derive from this class; Spec stands for any of them.
        for entry in fields(cast("Spec", self)):
            value = _plain(getattr(self, entry.name))
            if value is not None:
                table[entry.name] = value
        return table


def _plain(value: object) -> Json:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, _Table):
        return value.to_dict()
    if isinstance(value, PathLike):
        return fspath(cast("PathLike[str]", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {key: _plain(item) for key, item in items}
    # numpy scalars and the like know their Python value.
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", 0) == 0:
        return _plain(item())
    if hasattr(value, "__iter__"):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    raise TypeError(f"{value!r} has no place in a spec")


@dataclass(frozen=True)
class Postgres(_Table):
    """A PostgreSQL server.

    Parameters
    ----------
    version
        Version, a prefix in whole components: ``"13"`` accepts 13.23. Default ``"13"``.
    label
        Name of this level of the factor ``engine``. Default ``postgres-13``, after the version.
    allow_other_version
        Whether another version may run; every table then says which did.
    provision
        ``"container"``, ``"process"`` (binaries on this machine) or ``"url"`` (a server that
        exists already). Default ``"container"`` where Docker answers, otherwise ``"process"``.
    image
        Container: an image in place of the pinned one.
    shm_size
        Container: size of ``/dev/shm``. Default ``"256MiB"``.
    memory
        Container: memory limit.
    cpus
        Container: CPU limit in cores.
    bin_dir
        Process: directory that holds ``initdb`` and ``postgres``.
    url
        Url: where the server is, without a password, which is read from the environment variable
        ``BEDPLATE_PASSWORD`` or ``PGPASSWORD``.
    transport
        ``"unix"`` (default) or ``"tcp"``.
    settings
        PostgreSQL's settings. ``fsync``, ``synchronous_commit`` and ``full_page_writes`` are on
        unless named here.
    settings_profile
        ``"stock"`` (default), or ``"fs-tuned"``, which adds settings that suit the storage.
    block_size, wal_block_size
        Sizes of a block of tables and of write-ahead log, such as ``"4kB"``, which are compiled in:
        a container's image with them is built by ``bedplate images build``. Default: whatever the
        server has.
    locale, encoding, checksums
        What ``initdb`` is told. Default ``"C"``, ``"UTF8"`` and no checksums.
    """

    kind: ClassVar[str | None] = "postgres"

    version: Levels[str] | None = None
    _: KW_ONLY
    label: str | None = None
    allow_other_version: bool | None = None
    provision: Literal["container", "process", "url"] | None = None
    image: str | None = None
    shm_size: Size | None = None
    memory: Size | None = None
    cpus: float | None = None
    bin_dir: Path | None = None
    url: str | None = None
    transport: Literal["unix", "tcp"] | None = None
    settings: Mapping[str, Levels[Scalar]] | None = None
    settings_profile: Levels[Literal["stock", "fs-tuned"]] | None = None
    block_size: Levels[Size] | None = None
    wal_block_size: Levels[Size] | None = None
    locale: str | None = None
    encoding: str | None = None
    checksums: bool | None = None


@dataclass(frozen=True)
class MariaDb(_Table):
    """A MariaDB server.

    Parameters
    ----------
    version
        Version, a prefix in whole components: ``"10.3"`` accepts 10.3.39. Default ``"10.3"``.
    label
        Name of this level of the factor ``engine``. Default ``mariadb-10.3``, after the version.
    allow_other_version
        Whether another version may run; every table then says which did. Only then does the image
        that is built from Debian's packages, which is MariaDB 10.5, run in place of 10.3.
    provision
        ``"container"``, ``"process"`` (binaries on this machine) or ``"url"`` (a server that
        exists already). Default ``"container"`` where Docker answers, otherwise ``"process"``.
    image
        Container: an image in place of the pinned one.
    shm_size
        Container: size of ``/dev/shm``. Default ``"256MiB"``.
    memory
        Container: memory limit.
    cpus
        Container: CPU limit in cores.
    bin_dir
        Process: directory that holds ``mariadbd``.
    url
        Url: where the server is, ``mysql://USER@HOST:PORT`` without a password, which is read from
        the environment variable ``BEDPLATE_PASSWORD`` or ``MYSQL_PWD``.
    transport
        ``"unix"`` (default) or ``"tcp"``.
    settings
        MariaDB's system variables. ``innodb_flush_log_at_trx_commit`` is 1 and
        ``innodb_doublewrite`` is on unless named here.
    settings_profile
        ``"stock"`` (default), or ``"fs-tuned"``, which adds settings that suit the storage.
    tls
        ``"off"`` (default), ``"require"`` (encrypted, whoever the server is) or ``"verify"``.
    tls_ca
        PEM file with the certificates of the authorities that ``"verify"`` trusts.
    """

    kind: ClassVar[str | None] = "mariadb"

    version: Levels[str] | None = None
    _: KW_ONLY
    label: str | None = None
    allow_other_version: bool | None = None
    provision: Literal["container", "process", "url"] | None = None
    image: str | None = None
    shm_size: Size | None = None
    memory: Size | None = None
    cpus: float | None = None
    bin_dir: Path | None = None
    url: str | None = None
    transport: Literal["unix", "tcp"] | None = None
    settings: Mapping[str, Levels[Scalar]] | None = None
    settings_profile: Levels[Literal["stock", "fs-tuned"]] | None = None
    tls: Literal["off", "require", "verify"] | None = None
    tls_ca: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Directory(_Table):
    """A plain directory, on whatever file system holds it.

    Parameters
    ----------
    path
        Absolute path of the directory under which fresh ones are made. Default: the work
        directory.
    label
        Name of this level of the factor ``storage``. Default ``"directory"``.
    """

    kind: ClassVar[str | None] = "directory"

    path: Path | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tmpfs(_Table):
    """Memory.

    Parameters
    ----------
    size
        Size limit, bytes or text such as ``"2GiB"``. Default: from the scale.
    label
        Name of this level of the factor ``storage``. Default ``"tmpfs"``.
    """

    kind: ClassVar[str | None] = "tmpfs"

    size: Size | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class _OnLoop(_Table):
    """The keys that all file systems on loop devices have."""

    size: Size | None = None
    layout: Levels[Literal["single", "raid0", "raid1", "raid10"]] | None = None
    devices: int | None = None
    scheduler: Levels[str] | None = None
    read_ahead: Levels[Size] | None = None
    fullness: Levels[int] | None = None
    churn: int | None = None
    device: str | None = None
    erase: str | None = None
    mkfs_options: Sequence[str] | None = None
    mount_options: Sequence[str] | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ext2(_OnLoop):
    """The file system ext2, made fresh on a loop device for each trial.

    The parameters are those of `Ext4`.
    """

    kind: ClassVar[str | None] = "ext2"

    block_size: Levels[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Ext3(_OnLoop):
    """The file system ext3, made fresh on a loop device for each trial.

    The parameters are those of `Ext4`.
    """

    kind: ClassVar[str | None] = "ext3"

    block_size: Levels[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Ext4(_OnLoop):
    """The file system ext4, made fresh on a loop device for each trial.

    Parameters
    ----------
    size
        Size of the volume, bytes or text such as ``"24GiB"``. Default: from the scale.
    block_size
        1024, 2048 or 4096 bytes. Default 4096.
    layout
        ``"single"`` (default), ``"raid0"``, ``"raid1"`` or ``"raid10"``; by md, at
        site ``local``.
    devices
        Number of loop devices. Default: as few as the layout takes.
    scheduler
        The kernel's scheduler of their requests. Default ``"none"``.
    read_ahead
        How far the kernel reads ahead, bytes or text such as ``"128KiB"``. Default: its own.
    fullness
        Percent of the volume that the files of an ageing use before anything is loaded. Default 0:
        the volume is fresh.
    churn
        How many times the bytes of those files are deleted and written once more. Default 2.
    device
        Block device of this machine, in place of loop devices; at site ``local``, with `erase`.
    erase
        What `device` is called (its serial number), as the consent that everything on it is lost.
    mkfs_options
        Further arguments for ``mkfs.ext4``.
    mount_options
        Mount options. Default ``["noatime"]``.
    label
        Name of this level of the factor ``storage``. Default ``"ext4"``.
    """

    kind: ClassVar[str | None] = "ext4"

    block_size: Levels[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Xfs(_OnLoop):
    """The file system xfs, made fresh on a loop device for each trial.

    Parameters
    ----------
    size
        Size of the volume, bytes or text such as ``"24GiB"``; at least 300 MiB. Default: from the
        scale.
    block_size
        A power of two from 512 to 65536 bytes. Default 4096.
    layout
        ``"single"`` (default), ``"raid0"``, ``"raid1"`` or ``"raid10"``; by md, at
        site ``local``.
    devices
        Number of loop devices. Default: as few as the layout takes.
    scheduler
        The kernel's scheduler of their requests. Default ``"none"``.
    read_ahead
        How far the kernel reads ahead, bytes or text such as ``"128KiB"``. Default: its own.
    fullness
        Percent of the volume that the files of an ageing use before anything is loaded. Default 0:
        the volume is fresh.
    churn
        How many times the bytes of those files are deleted and written once more. Default 2.
    device
        Block device of this machine, in place of loop devices; at site ``local``, with `erase`.
    erase
        What `device` is called (its serial number), as the consent that everything on it is lost.
    mkfs_options
        Further arguments for ``mkfs.xfs``.
    mount_options
        Mount options. Default ``["noatime"]``.
    label
        Name of this level of the factor ``storage``. Default ``"xfs"``.
    """

    kind: ClassVar[str | None] = "xfs"

    block_size: Levels[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Btrfs(_OnLoop):
    """The file system btrfs, made fresh on loop devices for each trial.

    The other parameters are those of `Ext4`, but all layouts are made, by btrfs itself.

    Parameters
    ----------
    block_size
        A power of two from 4096 to 65536 bytes. Default 4096.
    nodatacow
        Whether files are written in place, by the attribute ``C`` of the empty volume. Default
        ``False``. The mount option ``"nodatacow"`` is another way, for all files of the volume.
    """

    kind: ClassVar[str | None] = "btrfs"

    block_size: Levels[int] | None = None
    nodatacow: Levels[bool] | None = None


@dataclass(frozen=True, kw_only=True)
class F2fs(_OnLoop):
    """The file system f2fs, made fresh on a loop device for each trial.

    The parameters are those of `Ext4`, but there is no `block_size`.
    """

    kind: ClassVar[str | None] = "f2fs"


@dataclass(frozen=True, kw_only=True)
class Nilfs2(_OnLoop):
    """The file system nilfs2, made fresh on a loop device for each trial.

    The parameters are those of `Ext4`.
    """

    kind: ClassVar[str | None] = "nilfs2"

    block_size: Levels[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Zfs(_Table):
    """ZFS, a pool with one dataset made fresh on loop devices for each trial, at site ``local``.

    Whatever implements ZFS on the machine makes it; cells with a property that it does not have are
    planned as not available.

    Parameters
    ----------
    recordsize, logbias, sync, compression, primarycache, atime
        Properties of the dataset, in ZFS's own words. Default: ZFS's own.
    options
        Further properties of the dataset.
    size
        Size of the volume, bytes or text such as ``"24GiB"``. Default: from the scale.
    layout
        ``"single"`` (default), ``"raid0"`` (a stripe), ``"raid1"`` (a mirror), ``"raid10"`` (a
        stripe of mirrors) or ``"raidz"``.
    devices
        Number of loop devices. Default: as few as the layout takes.
    scheduler
        The kernel's scheduler of their requests. Default ``"none"``.
    read_ahead
        How far the kernel reads ahead, bytes or text such as ``"128KiB"``. Default: its own.
    fullness
        Percent of the volume that the files of an ageing use before anything is loaded. Default 0:
        the volume is fresh.
    churn
        How many times the bytes of those files are deleted and written once more. Default 2.
    device
        Block device of this machine, in place of loop devices; at site ``local``, with `erase`.
    erase
        What `device` is called (its serial number), as the consent that everything on it is lost.
    ashift
        Power of two of the pool's sector size, 9 to 16. Default: ZFS's own.
    label
        Name of this level of the factor ``storage``. Default ``"zfs"``.
    """

    kind: ClassVar[str | None] = "zfs"

    recordsize: Size | None = None
    logbias: str | None = None
    sync: str | None = None
    compression: str | None = None
    primarycache: str | None = None
    atime: Scalar | None = None
    options: Mapping[str, Scalar] | None = None
    size: Size | None = None
    layout: Levels[Literal["single", "raid0", "raid1", "raid10", "raidz"]] | None = None
    devices: int | None = None
    scheduler: Levels[str] | None = None
    read_ahead: Levels[Size] | None = None
    fullness: Levels[int] | None = None
    churn: int | None = None
    device: str | None = None
    erase: str | None = None
    ashift: int | None = None
    label: str | None = None

    def to_dict(self) -> dict[str, Json]:
        """Return the keys that were given; properties are a table of their own.

        Raises
        ------
        ValueError
            When `options` holds a property that is given by its name, too.
        """
        devices = ("size", "layout", "devices", "scheduler", "read_ahead", "fullness", "churn")
        outer = ("kind", *devices, "device", "erase", "ashift", "label")
        table = super().to_dict()
        options = cast("dict[str, Json]", table.pop("options", {}))
        for key in [key for key in table if key not in outer]:
            if key in options:
                raise ValueError(f"`{key}` is given twice, once in `options`")
            options[key] = table.pop(key)
        return {**table, "options": options} if options else table


@dataclass(frozen=True, kw_only=True)
class _BuiltIn(_Table):
    """The keys that all built-in workloads have."""

    scale: Levels[int] | None = None
    filler_random: Levels[int] | None = None
    instances: Levels[int] | None = None
    clients: Levels[int] | None = None
    threads: Levels[int] | None = None
    protocol: Levels[Literal["simple", "extended", "prepared"]] | None = None
    max_tries: int | None = None
    cache: Levels[Literal["warm", "cold"]] | None = None
    rate: Levels[float] | None = None
    spacing: Levels[Literal["poisson", "even"]] | None = None
    duration: Seconds | None = None
    transactions: int | None = None
    warmup: Seconds | None = None


@dataclass(frozen=True, kw_only=True)
class TpcB(_BuiltIn):
    """pgbench's default transaction, in the manner of TPC-B: three updates, a select, an insert.

    Parameters
    ----------
    scale
        Scale factor, 100,000 accounts each. Default 1.
    filler_random
        Percent of each account's filler that is random text, for file systems that compress.
        Default 0, as pgbench: all blanks.
    instances
        Copies of the workload that run at once in one server, each in its own schema, as its own
        user and with its own clients. Default 1.
    clients
        Concurrent connections of each instance. Default 1.
    threads
        Threads that carry those of one instance. Default: as many as clients, at most one for
        every two CPUs over all instances.
    protocol
        ``"simple"`` (default), ``"extended"`` or ``"prepared"``, as pgbench means them.
    max_tries
        How often a transaction is tried, with the same values, when it fails by a serialization
        failure or a deadlock. Default 1: never again.
    cache
        ``"warm"`` (default): what loading left in memory stays there; or ``"cold"``: the server is
        started again when the kernel has forgotten its files.
    rate
        Transactions per second that each instance is to start, an open loop. Default: a closed
        loop, in which a client starts one when it has ended the last.
    spacing
        ``"poisson"`` (default) or ``"even"`` times between two of them; with `rate`.
    duration
        Length of the measured part, seconds or text such as ``"2min"``. Default: by profile.
    transactions
        Transactions for each client, in place of `duration`; there is then no warm-up.
    warmup
        Load before measuring starts, seconds or text. Default: by profile; none where `cache` has
        ``"cold"``.
    """

    kind: ClassVar[str | None] = "tpcb"


@dataclass(frozen=True, kw_only=True)
class SimpleUpdate(_BuiltIn):
    """pgbench's ``simple-update``: an update, a select, an insert, without the contended rows.

    The parameters are those of `TpcB`.
    """

    kind: ClassVar[str | None] = "simple-update"


@dataclass(frozen=True, kw_only=True)
class SelectOnly(_BuiltIn):
    """pgbench's ``select-only``: one select by key.

    The parameters are those of `TpcB`.
    """

    kind: ClassVar[str | None] = "select-only"


@dataclass(frozen=True, kw_only=True)
class Slap(_Table):
    """What mysqlslap does, on MariaDB: generated statements, sent by each client.

    All parameters but the first five are mysqlslap's options, with its defaults. A list of values
    is a factor; the last five, which are statements, take one value.

    Parameters
    ----------
    instances
        Copies of the workload that run at once in one server, each in its own database, as its own
        user and with its own clients. Default 1.
    clients
        Concurrent connections of each instance. Default 1.
    threads
        Threads that carry those of one instance. Default: as many as clients, at most one for
        every two CPUs over all instances.
    protocol
        ``"simple"`` (default, as mysqlslap), ``"extended"`` or ``"prepared"``.
    cache
        ``"warm"`` (default) or ``"cold"``, as in `TpcB`.
    int_columns, char_columns
        Numbers of columns; a text ``"N:1"`` gives each an index. Default 1 each.
    secondary_indexes
        Further columns with a unique key each. Default 0.
    key
        ``"none"`` (default), ``"autoincrement"`` or ``"guid"``.
    load_type
        ``"mixed"`` (default), ``"write"``, ``"update"``, ``"key"`` or ``"read"``.
    write_number
        Statements before the queries, the ``CREATE TABLE`` among them. Default 100.
    unique_write_number
        Distinct rows among them. Default 10.
    unique_query_number
        Distinct queries after the first. Default 10.
    queries_per_client
        Queries of each client. Default: one pass of the list.
    number_of_queries
        Queries in all, split exactly over the clients, in place of `queries_per_client`.
    commit_every
        Statements of a client between commits; 0 (default) is autocommit.
    detach_every
        Queries of a client between connections; 0 (default) keeps one.
    iterations
        How often the whole is run in a trial. Default 1.
    storage_engine
        ``NAME`` or ``NAME:OPTIONS``. Default: the server's.
    create, query, pre_query, post_query
        Statements of your own.
    delimiter
        What stands between two of them. Default: a line's end.
    """

    kind: ClassVar[str | None] = "slap"

    instances: Levels[int] | None = None
    clients: Levels[int] | None = None
    threads: Levels[int] | None = None
    protocol: Levels[Literal["simple", "extended", "prepared"]] | None = None
    cache: Levels[Literal["warm", "cold"]] | None = None
    int_columns: Levels[int | str] | None = None
    char_columns: Levels[int | str] | None = None
    secondary_indexes: Levels[int] | None = None
    key: Levels[Literal["none", "autoincrement", "guid"]] | None = None
    load_type: Levels[Literal["mixed", "write", "update", "key", "read"]] | None = None
    write_number: Levels[int] | None = None
    unique_write_number: Levels[int] | None = None
    unique_query_number: Levels[int] | None = None
    queries_per_client: Levels[int] | None = None
    number_of_queries: Levels[int] | None = None
    commit_every: Levels[int] | None = None
    detach_every: Levels[int] | None = None
    iterations: Levels[int] | None = None
    storage_engine: Levels[str] | None = None
    create: str | None = None
    query: str | None = None
    pre_query: str | None = None
    post_query: str | None = None
    delimiter: str | None = None

    def to_dict(self) -> dict[str, Json]:
        """Return the keys that were given; those of slap are a table of their own."""
        outer = ("kind", "instances", "clients", "threads", "protocol", "cache")
        table = super().to_dict()
        slap: dict[str, Json] = {key: table.pop(key) for key in list(table) if key not in outer}
        return {**table, "slap": slap} if slap else table


Engine: TypeAlias = Postgres | MariaDb
Storage: TypeAlias = Directory | Tmpfs | Ext2 | Ext3 | Ext4 | Xfs | Btrfs | F2fs | Nilfs2 | Zfs
Workload: TypeAlias = TpcB | SimpleUpdate | SelectOnly | Slap


@dataclass(frozen=True, kw_only=True)
class Design(_Table):
    """How the study is laid out.

    Parameters
    ----------
    profile
        Named set of defaults: ``"smoke"`` (default, a look whether everything works), ``"gate"``,
        ``"publish"`` or ``"calibrate"``.
    blocks
        Passes over all cells, each in its own random order. Default: by profile.
    seed
        Seed of the order and of all random values. Default 20.
    baseline
        Factor to level of the cells that the others are compared with, such as
        ``{"storage": "ext4"}``.
    metrics
        Whether machine, devices and server are read once a second while the load goes on. Default
        true.
    """

    profile: Literal["smoke", "gate", "publish", "calibrate"] | None = None
    blocks: int | None = None
    seed: int | None = None
    baseline: Mapping[str, Scalar] | None = None
    metrics: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Spec(_Table):
    """A study: what to run, on what, and how often.

    Parameters
    ----------
    engine
        One engine, or a list that becomes the factor ``engine``. Default: PostgreSQL 13.
    storage
        One storage, or a list that becomes the factor ``storage``.
    workload
        What is executed; a list of workloads that differ in their class alone becomes the factor
        ``workload``. Default: `TpcB` at scale 1 with one client.
    design
        Profile, blocks, seed and baseline.
    name
        The study's name.
    site
        ``"local"`` (this machine) or ``"docker"`` (through the daemon, no root needed). Default
        ``"local"`` as root, otherwise ``"docker"`` where the daemon answers.
    work_dir
        Absolute path of the directory for short-lived files.
    """

    name: str | None = None
    site: Literal["local", "docker"] | None = None
    work_dir: Path | None = None
    engine: Levels[Engine] | None = None
    storage: Levels[Storage] | None = None
    workload: Levels[Workload] | None = None
    design: Design | None = None

    def to_dict(self) -> dict[str, Json]:
        """Return the spec in the form of a spec file.

        Raises
        ------
        ValueError
            When the workloads of a list differ in more than their class.
        """
        table = super().to_dict()
        if isinstance(table.get("workload"), list):
            table["workload"] = _merge(cast("list[dict[str, Json]]", table["workload"]))
        return table

    def to_json(self) -> str:
        """Return the spec as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)


def _merge(workloads: list[dict[str, Json]]) -> dict[str, Json]:
    """Make one table of workloads that differ in their kind alone."""
    if not workloads:
        raise ValueError("`workload` is an empty list, but at least one workload is expected")
    shared = [{key: value for key, value in table.items() if key != "kind"} for table in workloads]
    if any(table != shared[0] for table in shared):
        raise ValueError(
            "`workload` lists workloads that differ in more than their class; "
            "give each the same scale, clients and so on"
        )
    kinds: list[Json] = [table["kind"] for table in workloads]
    return {"kind": kinds, **shared[0]}
