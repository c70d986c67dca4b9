"""Interrupts, kills and ordinary users, on this machine: what is left, and what is kept."""

from __future__ import annotations

import _thread
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Desk

QUICK = """
name = "quick"
[[storage]]
kind = "ext4"
[[storage]]
kind = "xfs"
[workload]
clients = 2
warmup = 0.5
duration = 2
"""
IN_DOCKER = f'site = "docker"\n{QUICK}'
PROCESS = f'{QUICK}[engine]\nprovision = "process"\nallow_other_version = true\n'
TMPFS = '[storage]\nkind = "tmpfs"\n'
# What a start of the command sweeps before it finds that it cannot do this.
IMPOSSIBLE = '[engine]\nimage = "bedplate/does-not-exist:1"\n' + TMPFS

STOPS_WITHIN_S = 5

# Kills of one kind in the soak, spread over the length of a run.
SOAK_KILLS = {"quick": 30, "docker": 12, "process": 12, "url": 6}


def postgres_bin() -> Path:
    """Return where PostgreSQL's binaries are: Debian's newest, or those on PATH."""
    majors = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    if majors:
        return majors[-1]
    found = shutil.which("initdb")
    assert found is not None, "apt-get install postgresql-15"
    return Path(found).resolve().parent


def query(socket_dir: Path, sql: str, database: str = "postgres") -> str:
    """Return the answer of a server to a query; empty while there is none."""
    psql = [postgres_bin() / "psql", "-X", "-q", "-A", "-t", "-U", "postgres", "-d", database]
    return subprocess.run(
        [*psql, "-h", socket_dir, "-c", sql], check=False, capture_output=True, text=True
    ).stdout.strip()


def trials_of(directory: Path) -> int:
    """Return the number of finished trials, after a look whether each can be read."""
    results = bp.load_run(directory)
    frames = (results.trials, results.intervals, results.latency, results.metrics)
    assert all(frame.height > 0 for frame in frames) or results.trials.height == 0
    for trial in results.trials.rows(named=True):
        assert trial["trust"] != "void", trial["trust_reasons"]
        assert trial["committed"] > 0
        # The log of a server that existed already cannot be had.
        if trial["storage"] != "existing":
            assert re.search(
                r"ready (to accept|for) connections", results.server_log(trial["trial"])
            )
    return results.trials.height


# Interrupts


def is_provisioning(desk: Desk) -> bool:
    return any((desk.state / "work").glob("*/volume0.img"))


def is_loading(desk: Desk) -> bool:
    copies = "select count(*) from pg_stat_activity where query ilike 'copy%' and state = 'active'"
    sockets = (desk.state / "work").glob("*-server/.s.PGSQL.5432")
    return any(query(socket.parent, copies) == "1" for socket in sockets)


def is_measuring(desk: Desk) -> bool:
    """Whether the second trial measures."""
    return desk.seconds(trial=1) >= 1


LOADING = f"{TMPFS}[workload]\nscale = 40\n"
MEASURING = f"{TMPFS}[workload]\nwarmup = 0\nduration = 3\nclients = 2\n[design]\nblocks = 9\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("spec", "phase", "finished"),
    [
        pytest.param(QUICK, is_provisioning, 0, id="provision"),
        pytest.param(IN_DOCKER, lambda desk: bool(desk.runs()), 0, id="provision-in-docker"),
        pytest.param(LOADING, is_loading, 0, id="load"),
        pytest.param(MEASURING, is_measuring, 1, id="measure"),
    ],
)
def test_an_interrupt_leaves_nothing_but_what_was_finished(
    desk: Desk, spec: str, phase: Callable[[Desk], bool], finished: int, number: signal.Signals
) -> None:
    run = desk.start(spec)
    desk.wait_for(lambda: phase(desk))
    started = time.monotonic()
    run.send_signal(number)
    status = run.wait(timeout=60)
    took_s = time.monotonic() - started
    assert desk.ours() == []
    assert status == 130, desk.said()
    assert took_s < STOPS_WITHIN_S, desk.said()
    desk.assert_nothing_left()

    [directory] = desk.runs()
    assert f"`{directory}` holds what was finished" in desk.said()
    assert "bedplate.load_run" in desk.said()
    assert trials_of(directory) == finished
    assert not bp.load_run(directory).complete


def test_an_interrupt_stops_a_run_whose_server_hangs(desk: Desk) -> None:
    run = desk.start(MEASURING)
    desk.wait_for(lambda: desk.seconds() >= 1)
    subprocess.run(["docker", "pause", desk.resource_name()], check=True, capture_output=True)
    started = time.monotonic()
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=60) == 130, desk.said()
    assert time.monotonic() - started < STOPS_WITHIN_S
    desk.assert_nothing_left()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have SIGINT raise KeyboardInterrupt, also in a background job, whose shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    "interrupt",
    [
        pytest.param(_thread.interrupt_main, id="interrupt-main"),
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGINT), id="sigint"),
    ],
)
def test_an_interrupt_in_python_names_the_directory(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], object]
) -> None:
    monkeypatch.setenv("BEDPLATE_STATE_DIR", str(desk.state))
    interrupted_at: list[float] = []

    def stop() -> None:
        interrupted_at.append(time.monotonic())
        interrupt()

    def progress(event: Any) -> None:  # noqa: ANN401 - one of several typed dicts
        # In the second trial, half a second into measuring.
        if event["event"] == "phase_started" and event["phase"] == "measure" and event["trial"]:
            threading.Timer(0.5, stop).start()

    with pytest.raises(KeyboardInterrupt) as caught:
        bp.run(desk.spec(MEASURING), out=desk.out, progress=progress)
    assert time.monotonic() - interrupted_at[0] < STOPS_WITHIN_S
    desk.assert_nothing_left()
    [named] = re.findall(r"`(/[^`]+)`", str(caught.value))
    assert [Path(named)] == desk.runs()
    assert trials_of(Path(named)) == 1


# Kills


class Decoys:
    """Things that look like ours and are not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = f"decoy-{os.getpid()}"
        self._made = contextlib.ExitStack()

    def make(self) -> None:
        """Make them."""
        image = self.root / "volume.img"
        image.write_bytes(b"decoy".ljust(1 << 20, b"\0"))
        self.device = self._tool("losetup", "--find", "--show", image)
        self._undo("losetup", "--detach", self.device)

        self.mount = self.root / "mount"
        self.mount.mkdir()
        self._tool("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", self.mount)
        self._undo("umount", self.mount)
        (self.mount / "file").write_text("decoy")

        self._tool("docker", "volume", "create", self.name)
        self._undo("docker", "volume", "rm", self.name)
        self._tool(
            *("docker", "run", "--detach", "--name", self.name, "--env", "POSTGRES_PASSWORD=decoy"),
            *("--mount", f"source={self.name},target=/decoy", "bedplate/postgres:13"),
            *("postgres", "-c", "fsync=off"),
        )
        self._undo("docker", "rm", "--force", "--volumes", self.name)
        self._in_container("sh", "-c", "echo decoy >/decoy/file")
        self._start_server()
        ready = "until psql -h localhost -U postgres -c 'select'; do sleep 0.1; done"
        self._in_container("timeout", "60", "env", "PGPASSWORD=decoy", "sh", "-c", ready)

    def check(self) -> None:
        """Check that each is there and works."""
        with Path(self.device).open("rb") as device:
            assert device.read(5) == b"decoy"
        assert self.device in self._tool("losetup", "--associated", self.root / "volume.img")
        assert self.mount.is_mount()
        assert (self.mount / "file").read_text() == "decoy"
        assert self._in_container("cat", "/decoy/file") == "decoy"
        assert self._in_container("psql", "-U", "postgres", "-A", "-t", "-c", "select 13") == "13"
        assert self.counts() == "100000 1 10 0"
        schemas = "select string_agg(nspname, ' ') from pg_namespace where nspname !~ '^pg_'"
        assert query(self.server, schemas, "pgbench") in {
            "public information_schema",
            "information_schema public",
        }

    def counts(self) -> str:
        """Return the rows of the tables in the database `pgbench`."""
        tables = ("accounts", "branches", "tellers", "history")
        counts = [f"(select count(*) from public.pgbench_{table})" for table in tables]  # noqa: S608
        return query(self.server, f"select concat_ws(' ', {', '.join(counts)})", "pgbench")

    def close(self) -> None:
        """Remove them."""
        self._made.close()

    def _start_server(self) -> None:
        self.server = self.root / "server"
        self.server.mkdir()
        shutil.chown(self.server, "nobody")
        data, programs = self.server / "data", postgres_bin()
        as_nobody = ("setpriv", "--reuid=nobody", "--clear-groups", "env", "--chdir=/", "LC_ALL=C")
        self._tool(*as_nobody, programs / "initdb", "--no-sync", "-U", "postgres", "-D", data)
        options = f"-k {self.server} -c listen_addresses="
        control = (*as_nobody, programs / "pg_ctl", "--silent", "--wait", "-D", data)
        self._tool(*control, "-l", self.server / "log", "-o", options, "start")
        self._undo(*control, "-m", "immediate", "stop")
        as_postgres = ("-h", self.server, "-U", "postgres")
        self._tool(programs / "createdb", *as_postgres, "pgbench")
        self._tool(programs / "pgbench", "--quiet", "-i", *as_postgres, "pgbench")

    def _in_container(self, *argv: str) -> str:
        return self._tool("docker", "exec", self.name, *argv)

    def _undo(self, *argv: str | Path) -> None:
        self._made.callback(self._tool, *argv)

    @staticmethod
    def _tool(*argv: str | Path) -> str:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            # Not a pipe, which a server that was started would keep open.
            stdout=(out := tempfile.TemporaryFile("w+")),  # noqa: SIM115
            stderr=subprocess.STDOUT,
            text=True,
        )
        with out:
            out.seek(0)
            said = out.read().strip()
        assert done.returncode == 0, f"{argv}: {said}"
        return said


@pytest.fixture(scope="module")
def decoys() -> Iterator[Decoys]:
    """Return things that look like ours and are not, made before anything is killed."""
    root = Path(tempfile.mkdtemp(prefix="bpt-", dir="/var/tmp"))
    root.chmod(0o755)
    made = Decoys(root)
    try:
        made.make()
        made.check()
        yield made
        made.check()
    finally:
        made.close()
        shutil.rmtree(root)


def spec_of(kind: str, decoys: Decoys) -> str:
    """Return the spec of a kind of kill."""
    url = f"postgresql://postgres@/pgbench?host={decoys.server}"
    existing = f'[engine]\nprovision = "url"\nurl = "{url}"\nallow_other_version = true\n'
    workload = "[workload]\nclients = 2\nwarmup = 0.5\nduration = 2\n[design]\nblocks = 2\n"
    return {
        "quick": QUICK,
        "docker": IN_DOCKER,
        "process": PROCESS,
        "url": existing + workload,
    }[kind]


def kill_and_check(desk: Desk, decoys: Decoys, spec: str, after_s: float, *, clean: bool) -> int:
    """Kill a run, then clean or start anew; return the number of its trials that were finished."""
    earlier = len(desk.runs())
    run = desk.start(spec)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(timeout=after_s)
    run.send_signal(signal.SIGKILL)
    run.wait()
    if clean:
        swept = desk.bedplate("clean")
        assert swept.returncode == 0, swept.stderr
    else:
        swept = desk.run(IMPOSSIBLE, name="impossible.toml")
        assert swept.returncode == 5, swept.stderr
        assert "still left" not in swept.stderr
    desk.assert_nothing_left()
    decoys.check()
    finished = 0
    for directory in desk.runs()[earlier:]:
        # A run that was killed while it began has not yet stored what it is.
        if (directory / "run.json").exists():
            finished += trials_of(directory)
            assert finished == len(list(directory.glob("trials/*/record.json")))
    return finished


@pytest.mark.parametrize(
    ("kind", "from_s", "to_s"),
    [("quick", 6.0, 10.0), ("docker", 1.0, 5.0), ("process", 0.5, 4.0)],
    ids=["quick", "docker", "process"],
)
def test_a_killed_run_is_cleaned_up(
    desk: Desk, decoys: Decoys, kind: str, from_s: float, to_s: float
) -> None:
    after_s = random.uniform(from_s, to_s)  # noqa: S311
    kill_and_check(desk, decoys, spec_of(kind, decoys), after_s, clean=kind != "docker")


@pytest.mark.soak
@pytest.mark.parametrize("kind", SOAK_KILLS)
def test_runs_killed_at_any_moment_are_cleaned_up(desk: Desk, decoys: Decoys, kind: str) -> None:
    spec = spec_of(kind, decoys)
    started = time.monotonic()
    assert desk.run(spec).returncode == 0
    length_s = time.monotonic() - started
    kills, finished = SOAK_KILLS[kind], 0
    for kill in range(kills):
        after_s = length_s * (kill + random.random()) / kills  # noqa: S311
        finished += kill_and_check(desk, decoys, spec, after_s, clean=kill % 2 == 0)
    # Shown with `-rP`.
    print(f"{kind}: {kills} kills over {length_s:.1f} s, {finished} trials finished")
    assert finished > 0


# Ordinary users


class User:
    """A user of this machine, with a home and a copy of the package that they may read."""

    def __init__(self, name: str, groups: list[str]) -> None:
        self.name = name
        # As it would be installed for them: our own interpreter may be closed to others.
        self.root = Path(tempfile.mkdtemp(prefix="bpt-", dir="/var/tmp"))
        self.root.chmod(0o755)
        package = Path(bp.__file__).parent
        shutil.copytree(
            package, self.root / "bedplate", ignore=shutil.ignore_patterns("__pycache__")
        )
        more = ["--groups", ",".join(groups)] if groups else []
        subprocess.run(["useradd", "--create-home", *more, name], check=True, capture_output=True)
        self.home = Path(f"~{name}").expanduser()
        self.python = next(
            python
            for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
            if self.does(python, "-c", "import sys; assert sys.version_info >= (3, 10)") == 0
        )

    def does(self, *argv: str | Path) -> int:
        """Run something as the user; what it says goes to the file `said`."""
        with (self.root / "said").open("wb") as said:
            return subprocess.run(
                [
                    *("setpriv", f"--reuid={self.name}", f"--regid={self.name}", "--init-groups"),
                    *("env", "--ignore-environment", f"HOME={self.home}", "PATH=/usr/bin:/bin"),
                    *(f"PYTHONPATH={self.root}", "PYTHONDONTWRITEBYTECODE=1"),
                    *("PYTHONWARNINGS=ignore:this is a debug build", *argv),
                ],
                check=False,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=300,
            ).returncode

    def said(self) -> str:
        """Return what the last command said."""
        return (self.root / "said").read_text()

    def close(self) -> None:
        """Remove the user."""
        subprocess.run(["userdel", "--remove", self.name], check=True, capture_output=True)
        shutil.rmtree(self.root)


@pytest.fixture
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    """Return an ordinary user, in the groups of the parameter."""
    made = User(f"bpt{os.getpid()}", request.param)
    yield made
    made.close()


def run_as(user: User, desk: Desk, spec: str, name: str = "spec.toml") -> bp.Results:
    """Run a spec as a user, with results and state in their home."""
    path = user.home / name
    path.write_text(spec)
    path.chmod(0o644)
    assert user.does(user.python, "-m", "bedplate", "run", path) == 0, user.said()
    desk.state, desk.out = user.home / ".local/state/bedplate", user.home / "runs"
    desk.assert_nothing_left()
    [directory] = desk.runs()
    results = bp.load_run(directory)
    assert results.complete
    assert trials_of(directory) == results.trials.height
    # The home goes before the desk does.
    desk.state, desk.out = desk.root / "state", desk.root / "out"
    return results


def docker_group() -> str:
    """Return the group that may use the Docker daemon."""
    return Path("/var/run/docker.sock").group()


@pytest.mark.parametrize("user", [[docker_group()]], indirect=True, ids=["docker"])
def test_a_user_in_the_docker_group_measures_file_systems(user: User, desk: Desk) -> None:
    kinds = ["btrfs", "ext2", "ext3", "ext4", "xfs"]
    spec = bp.Spec(
        engine=[bp.Postgres(), bp.MariaDb(allow_other_version=True)],
        storage=[bp.Btrfs(layout="raid1"), bp.Ext2(), bp.Ext3(), bp.Ext4(), bp.Xfs()],
        workload=bp.TpcB(clients=2, duration=1, warmup=0),
    )
    results = run_as(user, desk, spec.to_json(), "spec.json")
    assert '"site":"docker"' in results.plan.to_json()
    trials = results.trials.rows(named=True)
    ran = sorted((trial["engine_kind"], trial["fs_type"]) for trial in trials)
    assert ran == [(engine, kind) for engine in ("mariadb", "postgres") for kind in kinds]
    for trial in trials:
        version = {"postgres": "13.", "mariadb": "10."}[trial["engine_kind"]]
        assert trial["engine_version"].startswith(version)
        assert trial["trust"] != "void", trial["trust_reasons"]
        assert trial["durability"] in {"durable", "group"}


@pytest.mark.parametrize("user", [[]], indirect=True, ids=["nothing"])
def test_a_user_without_docker_measures_a_directory(user: User, desk: Desk) -> None:
    refused = user.home / "refused.toml"
    refused.write_text(PROCESS)
    assert user.does(user.python, "-m", "bedplate", "run", refused) == 5
    assert "needs root" in user.said()
    assert "hint: " in user.said()

    engine = '[engine]\nprovision = "process"\nallow_other_version = true\n'
    storage = '[storage]\nkind = "directory"\n'
    results = run_as(user, desk, engine + storage + QUICK[QUICK.index("[workload]") :])
    [trial] = results.trials.rows(named=True)
    assert trial["storage"] == "directory"
    assert trial["tps"] > 0
    assert trial["trust"] == "caveat"
    assert '"site":"local"' in results.plan.to_json()


# Start-up


def test_importing_takes_little_beyond_polars() -> None:
    def import_ms() -> float:
        code = "import polars; import bedplate"
        told = subprocess.run(
            [sys.executable, "-W", "ignore", "-X", "importtime", "-c", code],
            check=True,
            capture_output=True,
            text=True,
        ).stderr
        line = next(line for line in told.splitlines() if line.endswith("| bedplate"))
        return float(line.split("|")[1]) / 1000

    assert min(import_ms() for _ in range(5)) < 150


# No room


HELPER = "bedplate/storage-helper:1"
FILLING = """
[[storage]]
kind = "ext4"
size = "{size}"
[workload]
clients = 4
duration = 60
warmup = 0
"""
ENGINE = '[engine]\nprovision = "process"\nallow_other_version = true\n'


def fill(*command: str | Path) -> None:
    """Have somebody else take all room there is; root may use what is kept back, too."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "No space left" in done.stderr


def void_for_want_of_room(desk: Desk, run: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for the end; the one trial, which has no number."""
    assert run.wait(timeout=120) == 4
    [directory] = desk.runs()
    [trial] = bp.load_run(directory).trials.rows(named=True)
    assert (trial["trust"], trial["tps"]) == ("void", None)
    desk.assert_nothing_left()
    return trial


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(ENGINE + FILLING.format(size="300MiB"), id="postgres"),
        pytest.param(f'{ENGINE}kind = "mariadb"\n{FILLING.format(size="500MiB")}', id="mariadb"),
        pytest.param('site = "docker"\n' + FILLING.format(size="300MiB"), id="docker"),
    ],
)
def test_a_volume_without_room_makes_the_trial_void(desk: Desk, spec: str) -> None:
    run = desk.start(spec)
    desk.wait_for(lambda: desk.seconds() > 0)
    if "docker" in spec:
        volume = f"{desk.resource_name()}:/volume"
        container = ("docker", "run", "--rm", "--volume", volume, HELPER)
        fill(*container, "sh", "-c", "cat /dev/zero > /volume/filler")
    else:
        mount = desk.state / "work" / desk.resource_name() / "mount"
        fill("dd", "if=/dev/zero", f"of={mount}/filler", "bs=1M")
    trial = void_for_want_of_room(desk, run)
    assert re.search(r"the volume is full: \S+ \w*B of \S+ MiB are free", trial["trust_reasons"])


def test_a_full_place_of_the_images_makes_the_trial_void(desk: Desk) -> None:
    # Where blocks are copied when they are written, a fully written image needs room after all.
    image, place = desk.root / "place.img", desk.root / "place"
    subprocess.run(["truncate", "--size=3G", image], check=True)
    subprocess.run(["mkfs.btrfs", "--quiet", image], check=True)
    place.mkdir(mode=0o755)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    desk.take_stock()
    try:
        # A reserve of a gibibyte has to be free beside the volume.
        work_dir = f'work_dir = "{place}/work"\n'
        run = desk.start(work_dir + ENGINE + FILLING.format(size="300MiB"))
        desk.wait_for(lambda: desk.seconds() > 0)
        fill("dd", "if=/dev/zero", f"of={place}/filler", "bs=1M")
        trial = void_for_want_of_room(desk, run)
        words = "the kernel says: critical space allocation error, dev loop"
        assert words in trial["trust_reasons"]
    finally:
        subprocess.run(["umount", place], check=True)
