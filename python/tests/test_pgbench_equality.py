"""Bedplate's database, statements and random values are pgbench's.

Both run on one PostgreSQL 15 server, started here, and are compared by the server's own account of
them: its tables and its log. Nothing is skipped: a machine without that server fails.
"""
# ruff: noqa: S608 - programs and queries are put together from what stands here

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import pytest

import bedplate as bp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

BINARIES = Path("/usr/lib/postgresql/15/bin")
BEDPLATE = Path(sys.executable).with_name("bedplate")
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("PG")}

PATIENCE_S = 60
"""How long anything here may take; a run takes two seconds."""

GATE = 20
"""Key of the advisory lock that stops `DROP SCHEMA` while a test holds it."""

KINDS = {"tpcb": (), "simple-update": ("-N",), "select-only": ("-S",)}
PROTOCOLS = ("simple", "extended", "prepared")
TRANSACTIONS = 2
"""Of each client whose statements are compared; the second shows what a first one prepared."""

TABLES = ("branches", "tellers", "accounts")


def call(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
    """Run a program; what it says is shown when it fails."""
    settings: dict[str, Any] = {
        "env": ENVIRONMENT,
        "capture_output": True,
        "text": True,
        "timeout": PATIENCE_S,
        **options,
    }
    done = subprocess.run(command, check=False, **settings)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {PATIENCE_S} s"
        time.sleep(0.02)


class Entry(NamedTuple):
    """A line of the server's log."""

    session: str
    program: str
    user: str
    at: str
    text: str
    detail: str


@dataclass(frozen=True)
class Server:
    """A server that logs every statement, with what it was and how it came."""

    directory: Path

    @property
    def log(self) -> Path:
        return self.directory / "server.json"

    def url(self, database: str) -> str:
        host = str(self.directory).replace("/", "%2F")
        return f"postgresql://postgres@{host}/{database}"

    def client(self, program: str, database: str, *arguments: str, schema: str = "public") -> str:
        """Run a client program of PostgreSQL; return what it printed."""
        where = ("-h", str(self.directory), "-U", "postgres")
        environment = {**ENVIRONMENT, "PGOPTIONS": f"-c search_path={schema}"}
        return call(BINARIES / program, *where, *arguments, database, env=environment).stdout

    def query(self, database: str, sql: str) -> list[list[str]]:
        arguments = ("-XAtq", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-c", sql)
        printed = self.client("psql", database, *arguments)
        return [line.split("\t") for line in printed.splitlines()]

    def value(self, database: str, sql: str) -> str:
        ((value,),) = self.query(database, sql)
        return value

    def read_log(self, start: int) -> bytes:
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read()

    def log_position(self) -> int:
        """Return where the log stands, once all that was said so far is in it."""
        start = self.log.stat().st_size
        mark = f"mark {time.monotonic_ns()}"
        self.query("postgres", f"select '{mark}'")
        line = re.compile(rb".*?" + mark.encode() + rb"[^\n]*\n", re.DOTALL)
        wait_for("the log's collector", lambda: line.match(self.read_log(start)) is not None)
        found = line.match(self.read_log(start))
        assert found is not None
        return start + found.end()

    def entries(self, start: int) -> list[Entry]:
        """Return what is in the log from a position on."""
        end = self.log_position()
        lines = self.read_log(start)[: end - start].decode().splitlines()
        return [
            Entry(
                entry["session_id"],
                entry.get("application_name", ""),
                entry.get("user", ""),
                entry["timestamp"],
                entry["message"],
                entry.get("detail", ""),
            )
            for entry in map(json.loads, lines)
            if "session_id" in entry
        ]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Start a server on a Unix socket, as the user postgres where we are root."""
    # Short: the path of a socket has 107 bytes at most.
    directory = Path(tempfile.mkdtemp(prefix="bedplate-", dir="/tmp"))
    drop: tuple[str, ...] = ()
    if os.geteuid() == 0:
        shutil.chown(directory, "postgres", "postgres")
        drop = ("setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups")
    data = str(directory / "data")
    options = ("--auth=trust", "--username=postgres", "--no-locale", "--encoding=UTF8", "--no-sync")
    call(*drop, BINARIES / "initdb", *options, "-D", data, cwd=directory)
    settings = {
        "unix_socket_directories": str(directory),
        "listen_addresses": "",
        "logging_collector": "on",
        "log_directory": str(directory),
        "log_filename": "server.log",
        "log_destination": "jsonlog",
        "log_rotation_size": "0",
        "log_statement": "all",
        "log_min_duration_statement": "0",
        # Nothing changes by itself while it is compared.
        "autovacuum": "off",
    }
    arguments = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    with (directory / "postgres.out").open("w") as output:
        process = subprocess.Popen(
            (*drop, BINARIES / "postgres", "-D", data, *arguments),
            cwd=directory,
            env=ENVIRONMENT,
            stdout=output,
            stderr=output,
        )
    try:
        ready = (BINARIES / "pg_isready", "-q", "-h", directory)

        def answers() -> bool:
            assert process.poll() is None, (directory / "postgres.out").read_text()
            return subprocess.run(ready, check=False, env=ENVIRONMENT).returncode == 0

        wait_for("the server", answers)
        yield Server(directory)
    finally:
        # Nothing of it is needed any more.
        process.send_signal(signal.SIGQUIT)
        process.wait(timeout=PATIENCE_S)
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def gated(server: Server) -> str:
    """Make a database in which a trial's schema is not dropped while a test holds the gate."""
    server.query("postgres", "create database gated")
    server.query(
        "gated",
        f"""
        create extension pg_visibility;
        create function gate() returns event_trigger language plpgsql as
            $$ begin perform pg_advisory_xact_lock_shared({GATE}); end $$;
        create event trigger gate on ddl_command_start when tag in ('DROP SCHEMA')
            execute function gate();
        """,
    )
    return "gated"


@dataclass
class Run:
    """A run of one spec; `done` reads what it left."""

    server: Server
    database: str
    directory: Path

    def command(
        self, workload: Mapping[str, Any], settings: Mapping[str, str] | None = None
    ) -> tuple[str | Path, ...]:
        """Write the spec; return the command that runs it."""
        # A JSON scalar or list is also a TOML value.
        tables: dict[str, Mapping[str, Any]] = {
            "engine": {
                "version": "15",
                "provision": "url",
                "url": self.server.url(self.database),
            },
            "engine.settings": settings or {},
            "workload": workload,
        }
        lines = [f"work_dir = {json.dumps(str(self.directory))}"]
        for name, table in tables.items():
            lines += [f"[{name}]", *(f"{key} = {json.dumps(table[key])}" for key in table)]
        spec = self.directory / "equality.toml"
        spec.write_text("\n".join(lines) + "\n")
        return (BEDPLATE, "run", spec, "--out", self.directory / "runs", "--quiet")

    @property
    def done(self) -> bp.Results:
        (directory,) = (self.directory / "runs").iterdir()
        return bp.load_run(directory)

    def record(self, trial: int) -> dict[str, Any]:
        path = self.done.path / "trials" / f"t{trial:04}" / "record.json"
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    @contextlib.contextmanager
    def held(self, workload: Mapping[str, Any]) -> Iterator[str]:
        """Run one trial and stop before its schemas are dropped; give their names, with blanks.

        The run goes on, and must succeed, when the block is left.
        """
        psql = (BINARIES / "psql", "-XAtq", "-h", self.server.directory, "-U", "postgres")
        pipes = {"env": ENVIRONMENT, "text": True, "stdout": subprocess.PIPE}
        holder = subprocess.Popen((*psql, self.database), stdin=subprocess.PIPE, **pipes)
        run = None
        try:
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.write(f"select 'held' from pg_advisory_lock({GATE});\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "held\n"
            run = subprocess.Popen(self.command(workload), stderr=subprocess.STDOUT, **pipes)
            waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"

            def at_gate() -> bool:
                assert run is not None
                if run.poll() is not None:
                    pytest.fail(f"the run ended early: {run.communicate()[0]}")
                return self.server.value(self.database, waiting) == "1"

            wait_for("the end of the trial", at_gate)
            yield self.server.value(
                self.database,
                "select string_agg(nspname, ' ' order by nspname) from pg_namespace "
                "where nspname ~ '^bedplate_'",
            )
        finally:
            # The lock goes with the session that holds it.
            holder.communicate(timeout=PATIENCE_S)
            if run is not None:
                output, _ = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, output


def client_sessions(entries: Iterable[Entry], program: str) -> list[list[Entry]]:
    """Return the sessions that executed a script, in the order in which they began."""
    sessions: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.program == program:
            sessions.setdefault(entry.session, []).append(entry)
    select = "SELECT abalance FROM pgbench_accounts WHERE aid = "
    return [
        session for session in sessions.values() if any(select in entry.text for entry in session)
    ]


def messages(session: Iterable[Entry]) -> list[tuple[str, str]]:
    """Return texts and details without times."""
    pairs = (
        (re.sub(r"^duration: [0-9.]+ ms *", "", entry.text), entry.detail) for entry in session
    )
    return [pair for pair in pairs if pair[0]]


def shape(session: Iterable[Entry]) -> list[tuple[str, str]]:
    """Return messages with drawn values as N and statement names as numbers of appearance."""
    names: dict[str, str] = {"<unnamed>": "<unnamed>"}

    def named(match: re.Match[str]) -> str:
        return f"{match[1]} {names.setdefault(match[2], f'#{len(names)}')}: "

    def neutral(text: str) -> str:
        return re.sub(r"(?<![$\w])-?\d+", "N", text)

    return [
        (re.sub(r"^(parse|bind|execute) ([^ :]+): ", named, neutral(text)), neutral(detail))
        for text, detail in messages(session)
    ]


def drawn(session: Iterable[Entry]) -> list[int]:
    """Return the values that were executed with, in order."""
    values: list[int] = []
    for text, detail in messages(session):
        if not text.startswith(("parse", "bind")):
            source = text if text.startswith("statement") else detail
            values += map(int, re.findall(r"(?<![$\w])-?\d+", source))
    return values


@pytest.fixture(scope="module")
def our_sessions(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], list[Entry]]:
    """Run every script in every protocol, one client each; return what the server saw of each."""
    server.query("postgres", "create database ours")
    run = Run(server, "ours", tmp_path_factory.mktemp("ours"))
    start = server.log_position()
    workload = {"kind": list(KINDS), "protocol": PROTOCOLS, "transactions": TRANSACTIONS}
    call(*run.command(workload))
    sessions = client_sessions(server.entries(start), "bedplate")
    trials = run.done.trials.sort("trial")
    assert run.done.complete
    assert "void" not in trials["trust"].to_list()
    cells = zip(trials["workload"], trials["protocol"], strict=True)
    return dict(zip(cells, sessions, strict=True))


@pytest.fixture(scope="module")
def pgbench_database(server: Server) -> str:
    server.query("postgres", "create database theirs")
    server.client("pgbench", "theirs", "-i", "-q", "-s", "1")
    return "theirs"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", KINDS)
def test_statements_are_those_of_pgbench(
    server: Server,
    our_sessions: dict[tuple[str, str], list[Entry]],
    pgbench_database: str,
    kind: str,
    protocol: str,
) -> None:
    start = server.log_position()
    how = ("-n", "-c", "1", "-t", str(TRANSACTIONS), "-M", protocol, *KINDS[kind])
    server.client("pgbench", pgbench_database, *how)
    (theirs,) = client_sessions(server.entries(start), "pgbench")
    ours = our_sessions[kind, protocol]
    assert shape(ours) == shape(theirs)

    statements = {"tpcb": 7, "simple-update": 5, "select-only": 1}[kind]
    executed = [text for text, _ in shape(ours) if text.startswith(("statement", "execute"))]
    assert len(executed) == TRANSACTIONS * statements
    parsed = sum(text.startswith("parse") for text, _ in shape(ours))
    parses = {"simple": 0, "extended": TRANSACTIONS * statements, "prepared": statements}
    assert parsed == parses[protocol]

    # Eleven values a transaction: which statement takes which.
    if kind == "tpcb":
        for values in (drawn(ours), drawn(theirs)):
            for first in range(0, 11 * TRANSACTIONS, 11):
                delta, aid, aid_2, delta_2, tid, delta_3, bid, *history = values[first : first + 11]
                assert (aid_2, delta_2, delta_3) == (aid, delta, delta)
                assert history == [tid, bid, aid, delta]


def test_the_database_is_that_of_pgbench(server: Server, gated: str, tmp_path: Path) -> None:
    scale = 3
    start = server.log_position()
    server.query(gated, "create schema theirs")
    server.client("pgbench", gated, "-i", "-q", "-s", str(scale), schema="theirs")
    workload = {"kind": "select-only", "scale": scale, "transactions": 1}
    with Run(server, gated, tmp_path).held(workload) as ours:

        def dump(schema: str) -> list[str]:
            how = ("--schema-only", "--no-comments", "-n", schema)
            lines = server.client("pg_dump", gated, *how).splitlines()
            lines = [line for line in lines if not re.match(r"\\(un)?restrict ", line)]
            return [line.replace(schema, "SCHEMA") for line in lines]

        assert dump(ours) == dump("theirs")
        assert sum(line.startswith("CREATE TABLE") for line in dump(ours)) == 4

        for table in TABLES:
            here, there = f"{ours}.pgbench_{table}", f"theirs.pgbench_{table}"
            for one, other in ((here, there), (there, here)):
                rows = f"(select * from {one} except all select * from {other}) as differing"
                assert server.value(gated, f"select count(*) from {rows}") == "0", table
        rows = [server.value(gated, f"select count(*) from {ours}.pgbench_{t}") for t in TABLES]
        assert rows == [str(scale), str(10 * scale), str(100_000 * scale)]
        assert server.value(gated, f"select count(*) from {ours}.pgbench_history") == "0"

        # Also what no SELECT shows: pages, order on disk, what vacuum left and what is frozen.
        def physical(schema: str) -> list[list[str]]:
            pages = (
                "select relname, relpages, reltuples, relallvisible, reloptions, "
                "pg_relation_size(oid) from pg_class "
                f"where relnamespace = '{schema}'::regnamespace order by relname"
            )
            accounts = f"'{schema}.pgbench_accounts'"
            visible = f"select * from pg_visibility_map_summary({accounts})"
            order = (
                f"select md5(string_agg(ctid || ':' || aid, ',')) from {schema}.pgbench_accounts"
            )
            return [row for sql in (pages, visible, order) for row in server.query(gated, sql)]

        assert physical(ours) == physical("theirs")
        relpages = {name: int(pages) for name, pages, *_ in physical(ours)[:-2]}
        assert (relpages["pgbench_accounts"], relpages["pgbench_accounts_pkey"]) == (4919, 825)

    def load(program: str) -> list[str]:
        copied = (
            r"(statement|execute \w+): (create table|begin|truncate|insert|copy|commit|vac|alter)"
        )
        texts = [
            text
            for text, _ in messages(e for e in server.entries(start) if e.program == program)
            if re.match(copied, text)
        ]
        return [text.partition(": ")[2] for text in texts]

    assert load("bedplate") == load("pgbench")
    assert len(load("pgbench")) == 4 + 2 + scale + 10 * scale + 2 + 4 + 3


def chi_squared(values: Iterable[int], low: int, high: int, bins: int) -> float:
    """Return the statistic of values from `low` to `high`, cut into bins of equal width."""
    width, rest = divmod(high - low + 1, bins)
    assert rest == 0
    counts = Counter((value - low) // width for value in values)
    expected = sum(counts.values()) / bins
    return sum((counts[number] - expected) ** 2 / expected for number in range(bins))


def test_random_values_have_the_ranges_of_pgbench(
    server: Server, gated: str, tmp_path: Path
) -> None:
    scale, clients, transactions = 2, 4, 500
    run = Run(server, gated, tmp_path)
    workload = {"scale": scale, "clients": clients, "transactions": transactions}
    with run.held(workload) as schema:
        rows = server.query(gated, f"select tid, bid, aid, delta from {schema}.pgbench_history")
    tids, bids, aids, deltas = (
        [int(value) for value in column] for column in zip(*rows, strict=True)
    )
    assert len(rows) == clients * transactions == run.record(0)["instances"][0]["committed_all"]
    assert set(tids) == set(range(1, 10 * scale + 1))
    assert set(bids) == set(range(1, scale + 1))
    assert 1 <= min(aids) < max(aids) <= 100_000 * scale
    assert -5000 <= min(deltas) < max(deltas) <= 5000
    # The seed is fixed, so this passes always or never. Of 1,000 samples that are uniform one is
    # above 43.8, and one below 5.4 (19 degrees of freedom).
    assert 5.4 < chi_squared(tids, 1, 10 * scale, 20) < 43.8
    assert 5.4 < chi_squared(aids, 1, 100_000 * scale, 20) < 43.8
    # -5000 to 5000 are 10,001 values: the last is left out.
    assert 5.4 < chi_squared((d for d in deltas if d < 5000), -5000, 4999, 20) < 43.8
    # Branch and teller are drawn apart, so a teller need not belong to its branch: 40 pairs, with
    # 17.3 and 72.1 for the same bounds (39 degrees of freedom).
    pairs = [(tid - 1) * scale + bid for tid, bid in zip(tids, bids, strict=True)]
    assert 17.3 < chi_squared(pairs, 1, 10 * scale * scale, 40) < 72.1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_counted_is_what_was_committed(
    server: Server, gated: str, tmp_path: Path, protocol: str
) -> None:
    run = Run(server, gated, tmp_path)
    start = server.log_position()
    workload = {"clients": 3, "protocol": protocol, "warmup": 0.3, "duration": 1}
    with run.held(workload) as schema:
        rows = int(server.value(gated, f"select count(*) from {schema}.pgbench_history"))
    sessions = client_sessions(server.entries(start), "bedplate")
    assert len(sessions) == 3
    ends = sum(
        re.fullmatch(r"(statement|execute [^:]+): END;", text) is not None
        for session in sessions
        for text, _ in messages(session)
    )
    record = run.record(0)
    (instance,) = record["instances"]
    assert ends == rows == instance["committed_all"]
    # The window leaves out the warm-up and what ended after it.
    assert 0 < instance["outcomes"]["committed"] < rows
    assert instance["outcomes"]["failed"] == {}
    assert record["trust"]["level"] != "void"


@pytest.mark.parametrize(("live", "declared"), [("off", None), ("local", "on"), ("on", "off")])
def test_a_server_that_commits_otherwise_than_declared_is_not_measured(
    server: Server, tmp_path: Path, live: str, declared: str | None
) -> None:
    database = f"commits_{live}"
    server.query("postgres", f"create database {database}")
    server.query("postgres", f"alter database {database} set synchronous_commit = {live}")
    run = Run(server, database, tmp_path)
    settings = {} if declared is None else {"synchronous_commit": declared}
    start = server.log_position()
    command = run.command({"transactions": 1}, settings)
    stopped = subprocess.run(
        command, check=False, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    # Nothing could be measured at all.
    assert stopped.returncode == 5, stopped.stderr
    (trial,) = run.done.trials.to_dicts()
    assert trial["trust"] == "void"
    assert trial["tps"] is None
    for said in (stopped.stdout + stopped.stderr, run.record(0)["error"]):
        words = f"`engine.settings.synchronous_commit` is declared as `{declared or 'on'}`"
        assert words in said
        assert f"the live server has `{live}`" in said
    entries = server.entries(start)
    assert not any("pgbench_" in entry.text for entry in entries if entry.program == "bedplate")
    ours = "select count(*) from pg_namespace where nspname ~ '^bedplate_'"
    assert server.value(database, ours) == "0"


def test_instances_run_apart_and_together(server: Server, gated: str, tmp_path: Path) -> None:
    run = Run(server, gated, tmp_path)
    start = server.log_position()
    clients = 2
    workload = {"instances": 4, "clients": clients, "warmup": 0.5, "duration": 3}
    with run.held(workload) as held:
        schemas = held.split()
        assert len(schemas) == 4
        owners, histories = set[str](), list[int]()
        for schema in schemas:
            tables = f"select distinct tableowner from pg_tables where schemaname = '{schema}'"
            owners.add(server.value(gated, tables))
            columns = (("accounts", "abalance"), ("tellers", "tbalance"), ("branches", "bbalance"))
            sums = {
                server.value(gated, f"select sum({column}) from {schema}.pgbench_{table}")
                for table, column in columns
            }
            history = f"from {schema}.pgbench_history"
            assert sums == {server.value(gated, f"select sum(delta) {history}")}
            histories.append(int(server.value(gated, f"select count(*) {history}")))
    assert len(owners) == 4
    assert "postgres" not in owners

    # What the server saw: the clients of each user, and when the first of them began.
    began = dict[str, datetime]()
    sessions = dict[str, set[str]]()
    for entry in server.entries(start):
        if entry.user in owners and entry.text == "statement: BEGIN;":
            began.setdefault(entry.user, datetime.fromisoformat(entry.at.removesuffix(" UTC")))
            sessions.setdefault(entry.user, set()).add(entry.session)
    assert {user: len(found) for user, found in sessions.items()} == dict.fromkeys(owners, clients)
    assert max(began.values()) - min(began.values()) <= timedelta(milliseconds=50)

    results = run.done
    instances = results.instances
    recorded = [instance["committed_all"] for instance in run.record(0)["instances"]]
    assert recorded == histories
    (trial,) = results.trials.rows(named=True)
    assert trial["tps"] == pytest.approx(instances["tps"].sum())
    assert trial["committed"] == instances["committed"].sum() > 0
    assert results.latency["count"].sum() == trial["committed"]
    measured = results.intervals.filter(pl.col("phase") == "measure")
    assert measured["committed"].sum() == trial["committed"]
    assert measured["live_clients"].to_list() == [4 * clients] * 3
    started_s = instances["started_s"].to_list()
    assert max(started_s) - min(started_s) <= 0.05
    left = "select count(*) from pg_roles where rolname ~ '^bedplate_'"
    assert server.value(gated, left) == "0"
