"""The installed command, as one meets it in a shell: bad input, exit codes, what it shows."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Desk

EXT4 = '[[storage]]\nkind = "ext4"\n'
# The kernel of this kind of machine has no md.
MD = '[[storage]]\nkind = "xfs"\nlayout = "raid1"\n'
DIRECTORY = '[storage]\nkind = "directory"\n'
PROCESS = '[engine]\nprovision = "process"\nallow_other_version = true\n'
SHORT = "[workload]\nclients = 2\nduration = 2\nwarmup = 0.5\n"


@pytest.mark.parametrize(
    ("spec", "status", "named", "way_out"),
    [
        pytest.param(
            EXT4 + "[workload]\ncleints = 8",
            2,
            ["`workload.cleints`", "allowed: kind, scale, filler_random, instances, clients"],
            "did you mean `clients`?",
            id="unknown-key",
        ),
        pytest.param(
            EXT4 + '[[storage]]\nkind = "ext5"',
            2,
            ["`storage[1].kind`", '"ext5"', "allowed: directory, tmpfs, ext4, ext3"],
            "did you mean `ext4`?",
            id="unknown-kind",
        ),
        pytest.param(
            EXT4 + 'size = "900TiB"',
            5,
            ["`storage.size`", "900 TiB", "free"],
            "lower `size`",
            id="more-than-free",
        ),
        pytest.param(
            EXT4 + "[workload]\nclients = 98",
            2,
            ["`workload.clients`", "98", "`engine.settings.max_connections`", "100"],
            "at least 101",
            id="too-many-clients",
        ),
        pytest.param(
            '[engine]\nimage = "bedplate/does-not-exist:1"\n' + EXT4,
            5,
            ["image `bedplate/does-not-exist:1` cannot be had"],
            "leave `engine.image` out",
            id="no-such-image",
        ),
        pytest.param(
            '[engine]\nsettings = { data_directory = "/srv/data" }\n' + EXT4,
            2,
            ["`engine.settings.data_directory`", '"/srv/data"'],
            "leave `data_directory` out",
            id="reserved-setting",
        ),
        pytest.param(
            b'name = "caf\xe9"\n' + EXT4.encode(),
            2,
            ["spec.toml", "not UTF-8", "byte 11"],
            "save the file with the encoding UTF-8",
            id="not-utf-8",
        ),
        pytest.param(
            EXT4 + '[workload]\nscale = "one"',
            2,
            ["`workload.scale`", '"one"'],
            "a whole number is expected",
            id="wrong-type",
        ),
        pytest.param(
            EXT4 + "[workload]\nduration = 2\ntransactions = 5",
            2,
            ["`workload.duration`", "`workload.transactions`", "contradict"],
            "keep one of them",
            id="contradiction",
        ),
        pytest.param(
            '[[storage]]\nkind = "xfs"\nsize = "200MiB"',
            2,
            ["`storage.size`", "200 MiB"],
            "300 MiB",
            id="too-small-for-xfs",
        ),
        pytest.param(
            f'{EXT4}layout = "raid0"\n{MD}',
            5,
            ["`storage[0]`", "this layout needs an array of md, but the kernel has no md"],
            "CONFIG_BLK_DEV_MD",
            id="nothing-available",
        ),
        pytest.param(
            '[storage]\nkind = "ext3"\nlayout = "raid10"\ndevices = 3',
            2,
            ["`storage.devices`", "3", '"raid10"'],
            "leave `devices` out",
            id="too-few-devices",
        ),
        pytest.param(
            f'{EXT4}{MD}[design]\nbaseline = {{ storage = "xfs" }}',
            5,
            ["`design.baseline`", "storage=xfs", "not available here", "needs an array of md"],
            "name another level",
            id="baseline-not-available",
        ),
        pytest.param(
            '[engine]\nprovision = "process"\nversion = "9.1"\n' + EXT4,
            5,
            ["`engine.version`", '"9.1"', "this machine has PostgreSQL"],
            "allow_other_version = true",
            id="no-such-version",
        ),
        pytest.param(
            '[storage]\nkind = "directory"\npath = "/does/not/exist"\n',
            5,
            ["`/does/not/exist`", "`storage.path`"],
            "mkdir -p /does/not/exist",
            id="no-such-directory",
        ),
        pytest.param(EXT4 + "[[storage", 2, ["spec.toml", "line 3"], "TOML", id="not-toml"),
    ],
)
def test_bad_input_is_an_error_and_nothing_is_made(
    desk: Desk, spec: str | bytes, status: int, named: list[str], way_out: str
) -> None:
    done = desk.run(spec)
    assert done.returncode == status, done.stderr
    error = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    for word in named:
        assert word in error
    assert way_out in done.stderr
    assert "panicked" not in done.stderr
    assert done.stdout == ""
    desk.assert_nothing_made()


@pytest.mark.parametrize("provision", ["container", "process"])
def test_a_port_in_use_is_refused_and_nothing_is_made(desk: Desk, provision: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        engine = f'provision = "{provision}"\ntransport = "tcp"\nsettings = {{ port = {port} }}\n'
        done = desk.run(f"[engine]\nallow_other_version = true\n{engine}{EXT4}")
    assert done.returncode == 5, done.stderr
    assert f"error: port {port} is in use" in done.stderr
    assert "choose another `engine.settings.port`, or leave it out" in done.stderr
    desk.assert_nothing_made()


def test_a_missing_file_is_named(desk: Desk) -> None:
    for verb in ("plan", "run"):
        done = desk.bedplate(verb, "missing.toml")
        assert done.returncode == 2
        assert "cannot read `missing.toml`: No such file" in done.stderr
    desk.assert_nothing_made()


def test_usage_errors_end_with_2(desk: Desk) -> None:
    for arguments in (["frobnicate"], ["run"], ["plan", "--jsno", "spec.toml"], []):
        done = desk.bedplate(*arguments)
        assert done.returncode == 2
        assert "Usage: bedplate" in done.stderr


def test_help_names_every_verb(desk: Desk) -> None:
    done = desk.bedplate("--help")
    assert done.returncode == 0
    for verb in ("run", "plan", "show", "images", "doctor", "clean"):
        assert f"\n  {verb} " in done.stdout
    assert desk.bedplate("--version").stdout == f"bedplate {bp.__version__}\n"


def test_the_plan_is_shown_and_nothing_is_made(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = desk.spec(EXT4 + SHORT)
    shown = desk.bedplate("plan", spec)
    assert shown.returncode == 0
    assert "block_size     4096" in shown.stdout
    told = desk.bedplate("plan", "--json", spec)
    assert told.returncode == 0
    monkeypatch.setenv("BEDPLATE_STATE_DIR", str(desk.state))
    assert json.loads(told.stdout) == json.loads(bp.plan(spec).to_json())
    assert shown.stdout.rstrip() == bp.plan(spec).render().rstrip()
    assert not desk.state.exists()


# Runs a command for which `io_uring_setup`, system call 425, fails with EPERM, as it does under
# Docker's default seccomp profile.
WITHOUT_IO_URING = """
import ctypes, os, struct, sys
code = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 0, 1, 425),
        (0x06, 0, 0, 0x50001),  # EPERM
        (0x06, 0, 0, 0x7FFF0000),  # allow
    )
)
program = ctypes.create_string_buffer(code)
filter = struct.pack("HP", 4, ctypes.addressof(program))
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
if libc.prctl(22, 2, filter, 0, 0):
    raise OSError(ctypes.get_errno(), "seccomp")
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_io_uring_carries_the_load_and_where_it_is_forbidden_epoll(desk: Desk) -> None:
    spec = desk.spec(DIRECTORY + PROCESS + SHORT)
    forbidden = (sys.executable, "-c", WITHOUT_IO_URING)
    for under, io in (((), "io_uring"), (forbidden, "epoll")):
        out = desk.root / io
        done = desk.bedplate("run", spec, "--out", out, under=under)
        assert done.returncode == 0, done.stderr
        (run,) = out.iterdir()
        (trial,) = bp.load_run(run).trials.to_dicts()
        assert trial["driver"].endswith(f" postgres/{io}")
        assert trial["tps"] > 0
    doctor = json.loads(desk.bedplate("doctor", "--json", under=forbidden).stdout)
    (check,) = (check for check in doctor if check["name"] == "io_uring")
    assert check["state"] == "warn"
    assert check["detail"].startswith("Operation not permitted")


def test_the_doctor_speaks_to_machines(desk: Desk) -> None:
    done = desk.bedplate("doctor", "--json")
    assert done.returncode == 0
    checks = json.loads(done.stdout)
    assert {"docker", "root", "loop devices", "mkfs.ext4", "mkfs.xfs"} <= {
        check["name"] for check in checks
    }
    for check in checks:
        assert set(check) == {"name", "state", "detail", "remedy"}
        assert check["state"] in {"ok", "warn", "fail", "not-visible"}
        assert (check["state"] in {"warn", "fail"}) is (check["remedy"] is not None)
    conditions = {"clocksource", "steal", "pressure: io", "flushes", "device", "free inodes"}
    assert conditions <= {check["name"] for check in checks}


def test_showing_what_is_no_run(desk: Desk, tmp_path: Path) -> None:
    done = desk.bedplate("show", tmp_path)
    assert done.returncode == 5
    assert f"error: `{tmp_path}` is not a run directory" in done.stderr
    assert "name a directory that holds `run.json`" in done.stderr


def test_showing_runs(desk: Desk, quick: Path) -> None:
    done = desk.bedplate("show", quick)
    assert done.returncode == 0
    assert "void: the server died" in done.stdout
    assert (
        "not available here\n  zfs needs pools, but neither OpenZFS nor zfs-fuse is installed\n"
        in done.stdout
    )
    (quick / "COMPLETE").unlink()
    done = desk.bedplate("show", quick)
    assert done.returncode == 0
    assert "the run is not complete" in done.stdout


def test_there_is_nothing_to_clean(desk: Desk) -> None:
    done = desk.bedplate("clean")
    assert done.returncode == 0
    assert done.stdout == "nothing of ours is left\n"


def kill_the_container(desk: Desk) -> None:
    subprocess.run(["docker", "kill", desk.resource_name()], check=True, capture_output=True)


def kill_the_postmaster(desk: Desk) -> None:
    pid_file = next((desk.state / "work").glob("*/pgdata/postmaster.pid"))
    os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGKILL)


@pytest.mark.parametrize(
    ("spec", "kill", "how"),
    [
        pytest.param(
            EXT4, kill_the_container, "the server ended: exited with status 137", id="container"
        ),
        pytest.param(
            PROCESS + DIRECTORY,
            kill_the_postmaster,
            "the server ended: was killed by signal 9",
            id="process",
        ),
    ],
)
def test_a_server_that_dies_makes_the_trial_void(
    desk: Desk, spec: str, kill: Callable[[Desk], None], how: str
) -> None:
    run = desk.start(spec + SHORT.replace("duration = 2", "duration = 5"))
    desk.wait_for(lambda: desk.seconds() >= 2)
    kill(desk)
    assert run.wait(timeout=30) == 4, desk.said()
    desk.assert_nothing_left()

    results = bp.load_run(desk.runs()[-1])
    trial = results.trials.row(0, named=True)
    assert (trial["trust"], trial["tps"], trial["service_time_ms_p50"]) == ("void", None, None)
    assert trial["clients_lost"] == 2
    assert trial["trust_reasons"].startswith("2 clients were lost: ")
    assert how in trial["trust_reasons"]
    # The seconds before it are kept, and the table shows a dash for each figure.
    assert results.intervals["committed"].sum() > 0
    row = next(line for line in desk.said().splitlines() if line.endswith("void  "))
    # Columns are at least two blanks apart: trial, cell, server, clients, then the figures.
    assert re.split(r"\s{2,}", row.strip())[4:7] == ["-", "-", "-"]
    assert f"void: {how}" in desk.said()


def test_nothing_that_can_be_measured_ends_with_5(desk: Desk) -> None:
    done = desk.run(PROCESS + 'settings = { work_mem = "plenty" }\n' + DIRECTORY + SHORT)
    assert done.returncode == 5, done.stderr
    assert "void: the server exited with status 1 before it was ready" in done.stdout
    desk.assert_nothing_left()
    results = bp.load_run(desk.runs()[-1])
    assert results.trials["trust"].to_list() == ["void"]
    assert results.trials["tps"].to_list() == [None]
    assert "work_mem" in results.trials["error"][0]
