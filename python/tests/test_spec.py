"""The typed spec gives exactly the keys of a spec file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bedplate.spec import (
    Btrfs,
    Design,
    Directory,
    Ext3,
    Ext4,
    MariaDb,
    Postgres,
    SelectOnly,
    SimpleUpdate,
    Spec,
    Tmpfs,
    TpcB,
    Xfs,
    Zfs,
)


def test_nothing_given_is_nothing_written() -> None:
    assert Spec().to_dict() == {}
    assert Postgres().to_dict() == {"kind": "postgres"}
    assert MariaDb().to_dict() == {"kind": "mariadb"}
    assert Design().to_dict() == {}


def test_every_key_arrives() -> None:
    spec = Spec(
        name="all",
        site="local",
        work_dir=Path("/srv/bedplate"),
        engine=[
            Postgres(
                ["13", "15"],
                label="a",
                allow_other_version=True,
                provision="container",
                image="postgres:13",
                shm_size="256MiB",
                memory=1 << 30,
                cpus=1.5,
                transport="tcp",
                settings={"max_wal_size": ["1GB", "4GB"], "autovacuum": False},
                locale="C",
                encoding="UTF8",
                checksums=True,
            ),
            Postgres(provision="process", bin_dir=Path("/pg/bin")),
            Postgres(provision="url", url="postgresql://db/x"),
            MariaDb(
                "10.3.8",
                allow_other_version=True,
                settings={"innodb_buffer_pool_size": ["1G", "4G"]},
                tls="verify",
                tls_ca=Path("/ca.pem"),
            ),
        ],
        storage=[
            Ext4(
                size="24GiB",
                block_size=[1024, 4096],
                mkfs_options=["-E", "stride=16"],
                mount_options=[],
            ),
            Xfs(label="x", block_size=8192),
            Directory(path="/srv"),
            Tmpfs(size=1 << 30),
            Ext3(layout="raid10", devices=14, mount_options=["data=writeback"]),
            Btrfs(layout=["single", "raid0"]),
            Zfs(
                recordsize="32k",
                atime=False,
                options={"copies": 1},
                layout="raidz",
                devices=3,
                ashift=12,
            ),
        ],
        workload=TpcB(
            scale=[1, 1000],
            clients=range(1, 3),
            threads=1,
            protocol=["simple", "prepared"],
            duration="2min",
            warmup=1.5,
        ),
        design=Design(profile="gate", blocks=3, seed=7, baseline={"storage": "ext4", "clients": 1}),
    )
    expected = {
        "name": "all",
        "site": "local",
        "work_dir": "/srv/bedplate",
        "engine": [
            {
                "kind": "postgres",
                "version": ["13", "15"],
                "label": "a",
                "allow_other_version": True,
                "provision": "container",
                "image": "postgres:13",
                "shm_size": "256MiB",
                "memory": 1073741824,
                "cpus": 1.5,
                "transport": "tcp",
                "settings": {"max_wal_size": ["1GB", "4GB"], "autovacuum": False},
                "locale": "C",
                "encoding": "UTF8",
                "checksums": True,
            },
            {"kind": "postgres", "provision": "process", "bin_dir": "/pg/bin"},
            {"kind": "postgres", "provision": "url", "url": "postgresql://db/x"},
            {
                "kind": "mariadb",
                "version": "10.3.8",
                "allow_other_version": True,
                "settings": {"innodb_buffer_pool_size": ["1G", "4G"]},
                "tls": "verify",
                "tls_ca": "/ca.pem",
            },
        ],
        "storage": [
            {
                "kind": "ext4",
                "size": "24GiB",
                "block_size": [1024, 4096],
                "mkfs_options": ["-E", "stride=16"],
                "mount_options": [],
            },
            {"kind": "xfs", "block_size": 8192, "label": "x"},
            {"kind": "directory", "path": "/srv"},
            {"kind": "tmpfs", "size": 1073741824},
            {
                "kind": "ext3",
                "layout": "raid10",
                "devices": 14,
                "mount_options": ["data=writeback"],
            },
            {"kind": "btrfs", "layout": ["single", "raid0"]},
            {
                "kind": "zfs",
                "options": {"recordsize": "32k", "atime": False, "copies": 1},
                "layout": "raidz",
                "devices": 3,
                "ashift": 12,
            },
        ],
        "workload": {
            "kind": "tpcb",
            "scale": [1, 1000],
            "clients": [1, 2],
            "threads": 1,
            "protocol": ["simple", "prepared"],
            "duration": "2min",
            "warmup": 1.5,
        },
        "design": {
            "profile": "gate",
            "blocks": 3,
            "seed": 7,
            "baseline": {"storage": "ext4", "clients": 1},
        },
    }
    assert spec.to_dict() == expected
    assert json.loads(spec.to_json()) == expected


def test_one_storage_needs_no_list() -> None:
    assert Spec(storage=Ext4()).to_dict() == {"storage": {"kind": "ext4"}}


def test_workloads_that_differ_in_kind_become_a_factor() -> None:
    workloads = [SimpleUpdate(scale=2, transactions=5), SelectOnly(scale=2, transactions=5)]
    assert Spec(workload=workloads).to_dict() == {
        "workload": {"kind": ["simple-update", "select-only"], "scale": 2, "transactions": 5}
    }


def test_workloads_that_differ_in_more_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in more than their class"):
        Spec(workload=[TpcB(scale=1), SelectOnly(scale=2)]).to_dict()
    with pytest.raises(ValueError, match="empty list"):
        Spec(workload=[]).to_dict()


def test_a_property_that_is_given_twice_is_refused() -> None:
    assert Zfs().to_dict() == {"kind": "zfs"}
    with pytest.raises(ValueError, match="`sync` is given twice"):
        Zfs(sync="disabled", options={"sync": "standard"}).to_dict()


def test_a_value_of_no_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="has no place in a spec"):
        Spec(design=Design(baseline={"storage": object()})).to_dict()  # pyright: ignore[reportArgumentType]


def test_specs_are_values() -> None:
    assert Ext4(size="1GiB") == Ext4(size="1GiB")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Ext4().size = "1GiB"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        Ext4("1GiB")  # pyright: ignore[reportCallIssue]
