"""Devices of the machine that a spec may erase: a loop device of the test's stands for a disk."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Desk

LOAD = bp.TpcB(clients=2, duration=1, warmup=0)


def output_of(*argv: str | Path) -> str:
    """Return what a tool says."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


class Disk:
    """A loop device, which is called after its file."""

    def __init__(self, image: Path) -> None:
        self.id = str(image)
        image.touch()
        subprocess.run(["truncate", "--size", "900M", image], check=True)
        attach = ["losetup", "--find", "--show", "--direct-io=on", image]
        self.path = output_of(*attach).strip()
        # Whoever had the device before may have told it otherwise.
        Path(f"/sys/class/block/{Path(self.path).name}/queue/write_cache").write_text("write back")

    def holds(self) -> list[str]:
        """Return what the device has the marks of."""
        return output_of("wipefs", "-n", "--noheadings", "-O", "TYPE", self.path).split()

    def mkfs(self, kind: str) -> None:
        subprocess.run([f"mkfs.{kind}", "-q", self.path], check=True)

    def spec(self, *storages: bp.Ext4 | bp.Btrfs | bp.Directory, site: str = "local") -> str:
        return bp.Spec(site=site, storage=storages, workload=LOAD).to_json()

    def ext4(self) -> bp.Ext4:
        return bp.Ext4(device=self.path, erase=self.id)


@pytest.fixture
def disk() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory(prefix="disk-", dir="/var/tmp") as directory:
        disk = Disk(Path(directory, "disk.img"))
        yield disk
        subprocess.run(["losetup", "--detach", disk.path], check=True)


def test_a_device_is_used_and_given_back_empty(disk: Disk, desk: Desk) -> None:
    spec = disk.spec(
        disk.ext4(),
        bp.Btrfs(device=disk.path, erase=disk.id),
        bp.Zfs(device=disk.path, erase=disk.id),
    )
    done = desk.run(spec, name="spec.json")
    assert done.returncode == 0, done.stderr
    (run,) = desk.runs()
    results = bp.load_run(run)
    rows = {row["storage"]: row for row in results.trials.to_dicts()}
    assert set(rows) == {"ext4", "btrfs", "zfs"}
    for row in rows.values():
        assert row["trust"] != "void", row["trust_reasons"]
        assert row["durability"] in {"durable", "group"}
        assert disk.path in row["storage_line"]
        assert row["device_written_bytes"] > 0
    assert disk.holds() == []
    desk.assert_nothing_left()


@pytest.mark.parametrize("erase", [None, "another"])
def test_nothing_is_erased_without_consent(disk: Disk, desk: Desk, erase: str | None) -> None:
    disk.mkfs("ext2")
    done = desk.run(disk.spec(bp.Ext4(device=disk.path, erase=erase)), name="spec.json")
    assert done.returncode == 2
    assert "`storage.erase`" in done.stderr
    # The hint says what the consent is.
    assert f'"{disk.id}"' in done.stderr
    assert disk.holds() == ["ext2"]
    desk.assert_nothing_made()


def test_what_holds_something_is_refused(disk: Disk, desk: Desk) -> None:
    disk.mkfs("ext2")
    before = output_of("sha256sum", disk.path)
    done = desk.run(disk.spec(disk.ext4()), name="spec.json")
    assert done.returncode == 5
    assert f"{disk.path} holds something: ext2" in done.stderr
    desk.assert_nothing_made()
    # Beside others, its cells are not available.
    done = desk.bedplate("plan", desk.spec(disk.spec(disk.ext4(), bp.Directory()), "spec.json"))
    assert done.returncode == 0, done.stderr
    assert f"{disk.path} holds something: ext2" in done.stdout
    assert output_of("sha256sum", disk.path) == before


def test_what_is_mounted_is_refused(disk: Disk, desk: Desk, tmp_path: Path) -> None:
    disk.mkfs("ext2")
    subprocess.run(["mount", disk.path, tmp_path], check=True)
    try:
        done = desk.run(disk.spec(disk.ext4()), name="spec.json")
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert done.returncode == 5
    assert f"{disk.path} is mounted at {tmp_path}" in done.stderr
    desk.assert_nothing_made()


def test_what_does_not_go_with_a_device_is_named(disk: Disk, desk: Desk) -> None:
    for key, value in {"size": "500MiB", "layout": "raid1", "scheduler": "none"}.items():
        storage = {"kind": "ext4", "device": disk.path, "erase": disk.id, key: value}
        done = desk.run(json.dumps({"storage": storage}), name="spec.json")
        assert done.returncode == 2
        assert f"`storage.{key}` does not go with `storage.device`" in done.stderr
    done = desk.run(disk.spec(disk.ext4(), site="docker"), name="spec.json")
    assert done.returncode == 5
    assert "devices of this machine are used at site local alone" in done.stderr
    desk.assert_nothing_made()


@pytest.mark.parametrize("then", ["nothing", "reused"])
def test_a_killed_run_gives_its_device_back(disk: Disk, desk: Desk, then: str) -> None:
    child = desk.start(disk.spec(disk.ext4()), "spec.json")
    desk.wait_for(lambda: desk.runs() and desk.seconds() > 0)
    child.kill()
    child.wait()
    assert disk.holds() == ["ext4"]
    if then == "reused":
        # Somebody frees the device by hand and uses it for something else.
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["docker", "rm", "--force", desk.resource_name()], check=True)
        (mount,) = desk.state.glob("work/bedplate-*/mount")
        subprocess.run(["umount", mount], check=True)
        subprocess.run(["mkfs.xfs", "-q", "-f", disk.path], check=True)
    done = desk.bedplate("clean")
    assert done.returncode == 0, done.stderr
    assert disk.holds() == (["xfs"] if then == "reused" else [])
    desk.assert_nothing_left()
