"""Fixtures: run directories to read, and a place to drive the command from."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DATA = Path(__file__).parent / "data"

# The command that was installed beside this interpreter.
BEDPLATE = Path(sys.executable).with_name("bedplate")

# How long others, a test of somebody else or the daemon, may take to remove what is not ours.
GONE_WITHIN_S = 30


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    """Return a complete run: two storages, two blocks, the last trial void.

    ``cargo test -p bedplate-results -- --ignored`` makes it anew.
    """
    return Path(shutil.copytree(DATA / "quick", tmp_path / "quick"))


@pytest.fixture
def killed(quick: Path) -> Path:
    """Return the same run, killed in its third trial."""
    for table in quick.glob("*.parquet"):
        table.unlink()
    (quick / "COMPLETE").unlink()
    shutil.rmtree(quick / "trials" / "t0003")
    (quick / "trials" / "t0002" / "record.json").unlink()
    intervals = quick / "trials" / "t0002" / "intervals.jsonl"
    intervals.write_bytes(intervals.read_bytes()[:-100])
    return quick


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """Return a server of the user's own: Debian's MariaDB, which logs every statement."""
    server = MariaDbServer()
    yield server
    server.close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    """Return a place to drive the command from, cleaned up afterwards."""
    place = Desk()
    yield place
    place.close()


def output_of(*argv: str | Path) -> str:
    """Return what a tool says."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def things() -> set[str]:
    """Return what a run may leave behind on this machine, one line a thing."""
    loops = output_of("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE")
    containers = output_of("docker", "ps", "--all", "--no-trunc", "--format", "{{.Names}} {{.ID}}")
    found = {f"loop {line}" for line in loops.splitlines()}
    found |= {f"container {line}" for line in containers.splitlines()}
    found |= {f"volume {name}" for name in output_of("docker", "volume", "ls", "--quiet").split()}
    pools = output_of("zpool", "list", "-H", "-o", "name").splitlines()
    found |= {f"pool {name}" for name in pools}
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return found | {f"mount {' '.join(line.split()[:3])}" for line in mounts}


def processes_of(marks: Sequence[str]) -> list[str]:
    """Return the processes whose command or working directory holds one of the marks."""
    found: list[str] = []
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            text = f"process {proc.name}: {command}in {(proc / 'cwd').readlink()}"
            if int(proc.name) != os.getpid() and any(mark in text for mark in marks):
                found.append(text)
    return found


class Desk:
    """Runs the command with state, results and specs in a directory of its own."""

    def __init__(self) -> None:
        # Short, as it is part of a socket's path; and open to the user that a server runs as.
        self.root = Path(tempfile.mkdtemp(prefix="bpt-", dir="/var/tmp"))
        self.root.chmod(0o755)
        self.state = self.root / "state"
        self.out = self.root / "out"
        self.env = {
            **os.environ,
            "BEDPLATE_STATE_DIR": str(self.state),
            "PYTHONWARNINGS": "ignore:this is a debug build",
        }
        self.take_stock()
        self._children: list[subprocess.Popen[bytes]] = []

    def take_stock(self) -> None:
        """Take what is on the machine at this moment for somebody else's."""
        self.before = things()

    def spec(self, text: str | bytes, name: str = "spec.toml") -> Path:
        """Write a spec file."""
        path = self.root / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def bedplate(
        self, *arguments: str | Path, under: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the command to its end, by the command ``under`` if that is given."""
        return subprocess.run(
            [*under, BEDPLATE, *arguments],
            cwd=self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def run(
        self, spec: str | bytes, *options: str, name: str = "spec.toml"
    ) -> subprocess.CompletedProcess[str]:
        """Run a spec to its end."""
        return self.bedplate("run", self.spec(spec, name), "--out", self.out, *options)

    def start(self, spec: str, name: str = "spec.toml") -> subprocess.Popen[bytes]:
        """Start to run a spec; what it says goes to the file ``said``."""
        with (self.root / "said").open("wb") as said:
            child = subprocess.Popen(
                [BEDPLATE, "run", self.spec(spec, name), "--out", self.out],
                cwd=self.root,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        self._children.append(child)
        return child

    def said(self) -> str:
        """Return what the command that was started has said."""
        return (self.root / "said").read_text()

    def wait_for(self, what: Callable[[], object], within_s: float = 60) -> None:
        """Wait until something holds, as long as the command that was started runs."""
        deadline = time.monotonic() + within_s
        while not what():
            assert self._children[-1].poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def runs(self) -> list[Path]:
        """Return the run directories, oldest first."""
        return sorted(self.out.glob("*"), key=lambda path: path.stat().st_mtime_ns)

    def seconds(self, trial: int = 0) -> int:
        """Return how many seconds of a trial of the newest run are stored."""
        files = [run / "trials" / f"t{trial:04}" / "intervals.jsonl" for run in self.runs()[-1:]]
        return sum(file.read_bytes().count(b"\n") for file in files if file.exists())

    def resource_name(self, trial: int = 0) -> str:
        """Return the name that everything of a trial of the newest run carries."""
        run = json.loads((self.runs()[-1] / "run.json").read_text())["run"]
        return f"bedplate-{run}-t{trial:04}"

    def marks(self) -> list[str]:
        """Return what the names of everything of ours contain."""
        runs = [json.loads(file.read_text())["run"] for file in self.out.glob("*/run.json")]
        return [str(self.state), *(f"bedplate-{run}-" for run in runs)]

    def ours(self) -> list[str]:
        """Return what is here of ours."""
        marks = self.marks()
        named = [thing for thing in things() if any(mark in thing for mark in marks)]
        # Nothing but the two directories that everything else is made in.
        kept = {self.state / "ledger", self.state / "work"}
        files = [f"file {path}" for path in self.state.rglob("*") if path not in kept]
        return sorted(named) + files + processes_of(marks)

    def assert_nothing_left(self) -> None:
        """Check that everything of ours is gone, and everything new that has no name of ours."""
        assert self.ours() == []
        deadline = time.monotonic() + GONE_WITHIN_S
        new = things() - self.before
        while new and time.monotonic() < deadline:
            time.sleep(0.2)
            new &= things()
        assert new == set()

    def assert_nothing_made(self) -> None:
        """Check that not even a directory for results was made."""
        assert not self.out.exists()
        self.assert_nothing_left()

    def close(self) -> None:
        """End what was started and remove everything."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait()
        cleaned = self.bedplate("clean")
        assert cleaned.returncode == 0, cleaned.stderr
        shutil.rmtree(self.root)


class Said(NamedTuple):
    """A line of the server's general log."""

    connection: int
    command: str
    text: str


class MariaDbServer:
    """A MariaDB server that was there before us."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="bpt-mariadb-", dir="/var/tmp"))
        self.root.chmod(0o755)
        self.data = self.root / "data"
        self.data.mkdir()
        # A server does not run as root.
        self._user = ["--user=mysql"] if os.geteuid() == 0 else []
        if self._user:
            shutil.chown(self.data, "mysql")
        output_of(
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *self._user,
        )
        self.start()
        # May do everything but have the server write all to storage, for which tests need not wait.
        self.query(
            "CREATE USER owner; GRANT ALL ON *.* TO owner WITH GRANT OPTION;"
            "REVOKE SUPER ON *.* FROM owner"
        )

    @property
    def socket(self) -> Path:
        return self.data / "socket"

    def url(self, user: str = "owner", database: str = "") -> str:
        """Return what a spec names."""
        return f"mysql://{user}@localhost/{database}?socket={self.socket}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "mariadbd",
                    "--no-defaults",
                    f"--datadir={self.data}",
                    f"--socket={self.socket}",
                    "--skip-networking",
                    "--skip-ssl",
                    "--log-output=TABLE",
                    "--general-log=ON",
                    *self._user,
                ],
                stdout=log,
                stderr=log,
            )
        ping = ["mariadb-admin", "--no-defaults", "--user=root", f"--socket={self.socket}", "ping"]
        deadline = time.monotonic() + 60
        while subprocess.run(ping, capture_output=True, check=False).returncode != 0:
            log = (self.root / "log").read_text()
            assert self._process.poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(0.05)

    def ensure_started(self) -> None:
        """Start it if it was killed."""
        if self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it and remove everything."""
        self.kill()
        shutil.rmtree(self.root)

    def client(self, program: str, *arguments: str) -> str:
        """Run a client program of MariaDB; return what it printed."""
        where = ("--no-defaults", "--user=root", f"--socket={self.socket}")
        return output_of(program, *where, *arguments)

    def query(self, sql: str) -> list[list[str]]:
        """Run statements; return the rows."""
        printed = self.client(
            "mariadb", "--batch", "--raw", "--skip-column-names", "--execute", sql
        )
        return [line.split("\t") for line in printed.splitlines()]

    def databases(self) -> set[str]:
        """Return the names of all databases."""
        return {name for (name,) in self.query("SHOW DATABASES")}

    def contents(self) -> str:
        """Return everything that users have here, as text that makes it again."""
        system = {"information_schema", "mysql", "performance_schema", "sys"}
        names = sorted(self.databases() - system)
        return self.client(
            "mariadb-dump", "--skip-comments", "--routines", "--events", "--databases", *names
        )

    def forget(self) -> None:
        """Empty the general log."""
        self.query("TRUNCATE mysql.general_log")

    def said(self) -> list[Said]:
        """Return the general log, in the order of time.

        mysqlslap sends a zero byte at the end of some statements; it is taken away.
        """
        rows = self.query(
            "SELECT JSON_ARRAY(thread_id, command_type, argument) FROM mysql.general_log"
        )
        lines = [Said(*json.loads(row)) for (row,) in rows]
        return [line._replace(text=line.text.removesuffix("\0")) for line in lines]
