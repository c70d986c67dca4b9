"""slap does what mysqlslap does, and not what mysqlslap does wrong.

Both run against one server, and are compared by the server's own account of them: its general log
and its tables. Nothing is skipped: a machine without that server fails.
"""

# ruff: noqa: S608 - statements are put together from what stands here

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl
    from conftest import Desk, MariaDbServer, Said

PHORONIX = {
    "int_columns": 4,
    "char_columns": 4,
    "key": "autoincrement",
    "load_type": "mixed",
    "queries_per_client": 1000,
}
PHORONIX_OPTIONS = (
    "--auto-generate-sql",
    "--number-int-cols=4",
    "--number-char-cols=4",
    "--auto-generate-sql-add-autoincrement",
    "--auto-generate-sql-load-type=mixed",
    "--auto-generate-sql-execute-number=1000",
    "--skip-ssl",
)
KEY = re.compile(r"(?<=WHERE id =  ')\d+(?='$)")
"""The key of a query, which is drawn while it runs; mysqlslap writes two blanks before it."""


def slap_on(url: str, *, slap: dict[str, object], clients: int = 1, blocks: int = 1) -> str:
    """Return the spec of slap on a server that exists already."""
    return json.dumps(
        {
            "engine": {"kind": "mariadb", "version": "10", "provision": "url", "url": url},
            "workload": {"kind": "slap", "clients": clients, "slap": slap},
            "design": {"blocks": blocks},
        }
    )


def run(desk: Desk, text: str, *options: str, status: int = 0) -> tuple[pl.DataFrame, str]:
    """Run a spec that ends with a status; return its trials, and what was printed."""
    done = desk.run(text, *options, name="spec.json")
    assert done.returncode == status, done.stdout + done.stderr
    return bp.load_run(desk.runs()[-1]).trials, done.stdout + done.stderr


def by_connection(log: list[Said]) -> list[list[Said]]:
    """Return what was said on each connection."""
    connections: defaultdict[int, list[Said]] = defaultdict(list)
    for line in log:
        connections[line.connection].append(line)
    return list(connections.values())


def texts(connection: list[Said]) -> list[str]:
    return [line.text for line in connection if line.command == "Query"]


class Account:
    """What the server tells of one run of either: who set up, and what each client said."""

    def __init__(self, log: list[Said]) -> None:
        about = ("CREATE TABLE `t1`", "INSERT INTO t1", "SELECT id from t1")
        connections = by_connection(log)
        setups = [
            [text for text in texts(lines) if text.startswith(about)]
            for lines in connections
            if any(text.startswith("CREATE TABLE `t1`") for text in texts(lines))
        ]
        (self.setup,) = setups
        # Clients begin with an INSERT.
        self.clients = [
            lines
            for lines in connections
            if texts(lines) and texts(lines)[0].startswith("INSERT INTO t1")
        ]


@pytest.fixture
def kept(mariadb: MariaDbServer) -> Iterator[None]:
    """Make a database of the user's for copies of tables."""
    mariadb.query("CREATE DATABASE kept")
    yield
    mariadb.query("DROP DATABASE kept")


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("clients", [1, 2])
def test_what_phoronix_runs_is_statement_for_statement_the_same(
    desk: Desk, mariadb: MariaDbServer, clients: int
) -> None:
    copy = "CREATE TABLE kept.{} AS SELECT * FROM t1"
    mariadb.forget()
    mariadb.client(
        "mysqlslap",
        *PHORONIX_OPTIONS,
        f"--concurrency={clients}",
        f"--post-query={copy.format('theirs')}",
    )
    theirs = Account(mariadb.said())
    mariadb.forget()
    run(
        desk,
        slap_on(
            mariadb.url(), clients=clients, slap=PHORONIX | {"post_query": copy.format("ours")}
        ),
    )
    ours = Account(mariadb.said())

    # The table and the rows before the load.
    assert Counter(text.split()[0] for text in theirs.setup) == {
        "CREATE": 1,
        "INSERT": 99,
        "SELECT": 1,
    }
    assert ours.setup == theirs.setup
    # What each client says, from its first word to its leave, but for the keys that are drawn.
    assert len(ours.clients) == len(theirs.clients) == clients
    conversations = [
        [(line.command, KEY.sub("?", line.text)) for line in lines if line.command != "Connect"]
        for lines in ours.clients + theirs.clients
    ]
    assert [conversation == conversations[0] for conversation in conversations] == [True] * (
        2 * clients
    )
    assert conversations[0][-1] == ("Quit", "")
    for lines in ours.clients:
        sent = texts(lines)
        assert Counter(text.split()[0] for text in sent) == {"INSERT": 545, "SELECT": 455}
        keys = [int(found[0]) for text in sent if (found := KEY.search(text))]
        assert len(keys) == 455
        assert set(keys) <= set(range(1, 100))
        # 455 draws of 99 leave one of them out in one of a hundred runs, and ten of them never.
        assert len(set(keys)) > 90

    # What came of it.
    counts = "SELECT COUNT(*), COUNT(DISTINCT intcol1) FROM kept.{} WHERE id <= 99"
    assert mariadb.query(counts.format("theirs")) == [["99", "10"]]
    rows = "SELECT * FROM kept.{} WHERE id <= 99 ORDER BY id"
    assert mariadb.query(rows.format("ours")) == mariadb.query(rows.format("theirs"))
    for table in ("ours", "theirs"):
        count = mariadb.query(f"SELECT COUNT(*) FROM kept.{table}")
        assert count == [[str(99 + 545 * clients)]]


@pytest.mark.parametrize(
    ("clients", "queries", "shares"),
    # mysqlslap sends 9 and 8.
    [(3, 10, [3, 3, 4]), (8, 5, [0, 0, 0, 1, 1, 1, 1, 1])],
)
def test_a_number_of_queries_is_split_exactly(
    desk: Desk, mariadb: MariaDbServer, clients: int, queries: int, shares: list[int]
) -> None:
    slap = {"query": "select 'a share'", "number_of_queries": queries}
    mariadb.forget()
    trials, _ = run(desk, slap_on(mariadb.url(), clients=clients, slap=slap))
    # Clients say nothing but their queries, and nobody else says only that.
    said = [texts(lines) for lines in by_connection(mariadb.said())]
    sent = sorted(len(lines) for lines in said if set(lines) <= {"select 'a share'"})
    # Beside the clients, `mariadb` is the only one that may have said nothing.
    assert sent[-clients:] == shares
    assert sum(sent) == queries
    # What was asked for, and what was done.
    plan = json.loads(bp.load_run(desk.runs()[-1]).plan.to_json())
    assert plan["cells"][0]["workload"]["work"]["queries"] == {"total": queries}
    assert trials["committed"].to_list() == [queries]
    assert trials["failed"].to_list() == [0]


def test_clients_that_are_all_refused_leave_no_number(desk: Desk, mariadb: MariaDbServer) -> None:
    # mysqlslap prints an average when no client of it got in, and ends with 0.
    mariadb.query(
        r"CREATE USER worker; GRANT ALL ON `bedplate\_%`.* TO worker; "
        "GRANT CREATE USER ON *.* TO worker"
    )
    before = mariadb.databases()
    locked = {"pre_query": "ALTER USER worker ACCOUNT LOCK"}
    spec = slap_on(mariadb.url("worker"), clients=3, slap=locked)
    trials, said = run(desk, spec, "--quiet", status=5)
    (row,) = trials.to_dicts()
    reason = "3 clients could not connect: 4151 (HY000): Access denied, this account is locked"
    assert row["trust_reasons"].startswith(reason)
    assert f"void: {reason}" in said
    numbers = ("tps", "queries_per_second", "pts_queries_per_second", "service_time_ms_p50")
    assert [row[number] for number in numbers] == [None] * 4
    assert (row["committed"], row["clients_lost"]) == (0, 3)
    # The server has refused, which is not its end.
    assert "the server ended" not in said
    # Nor was anybody let in to undo what was made; that is said, quiet or not, and done later.
    assert "not everything could be torn down: schema bedplate_" in said
    mariadb.query("ALTER USER worker ACCOUNT UNLOCK")
    assert desk.bedplate("clean").returncode == 0
    assert mariadb.databases() == before
    mariadb.query("DROP USER worker")
    assert desk.ours() == []


@pytest.mark.parametrize(
    ("slap", "status", "reason"),
    [
        (
            {"query": "select nope"},
            4,
            "3 clients were lost: 42S22: 1054: Unknown column 'nope'",
        ),
        (
            {"query": "select 1;select nope", "delimiter": ";", "queries_per_client": 1000},
            4,
            "3 clients were lost: 42S22: 1054: Unknown column 'nope'",
        ),
        (
            {"query": "select a from t", "create": "create tabel t (a int)"},
            5,
            "the server refused a statement: You have an error in your SQL syntax",
        ),
        (
            {"pre_query": "call nope()"},
            5,
            "the server refused a statement: PROCEDURE ",
        ),
        (
            {"post_query": "drop table nope"},
            4,
            "the server refused a statement: Unknown table ",
        ),
        (
            {"storage_engine": "nope"},
            5,
            "the server refused a statement: Unknown storage engine 'nope'",
        ),
    ],
    ids=["query", "second-query", "create", "pre-query", "post-query", "engine"],
)
def test_a_wrong_statement_is_an_error(
    desk: Desk, mariadb: MariaDbServer, slap: dict[str, object], status: int, reason: str
) -> None:
    # mysqlslap shows the error of a query and ends with 0.
    before = mariadb.databases()
    trials, said = run(desk, slap_on(mariadb.url(), clients=3, slap=slap), status=status)
    assert f"void: {reason}" in said
    (row,) = trials.to_dicts()
    assert (row["trust"], row["tps"], row["queries_per_second"]) == ("void", None, None)
    failed = "42S22=3" if "query" in slap and status == 4 else ""
    assert row["failed_by_sqlstate"] == failed
    assert mariadb.databases() == before
    assert desk.ours() == []


@pytest.fixture
def belongings(mariadb: MariaDbServer) -> Iterator[str]:
    """Fill the server with what is the user's, under every name that may tempt; return it all."""
    names = ["shop", "mysqlslap", "bedplate", "bedplate_mine", "test"]
    for name in names:
        mariadb.query(
            f"CREATE DATABASE {name} COMMENT 'bedplate'; USE {name};"
            "CREATE TABLE t1 (id SERIAL, a INT); INSERT INTO t1 (a) VALUES (1), (2);"
            "CREATE TABLE bedplate_mark (a INT) COMMENT 'bedplate';"
            "CREATE TABLE pgbench_accounts (aid INT); INSERT INTO pgbench_accounts VALUES (7);"
            "CREATE VIEW v AS SELECT a FROM t1;"
            "CREATE PROCEDURE p() SELECT 1"
        )
    contents = mariadb.contents()
    for name in names:
        assert f"CREATE DATABASE /*!32312 IF NOT EXISTS*/ `{name}`" in contents
    yield contents
    mariadb.query(";".join(f"DROP DATABASE {name}" for name in names))


TPCB = {"kind": "tpcb", "scale": 1, "clients": 2, "duration": 1, "warmup": 0}
OWN = {
    "create": "create table a (id int primary key);"
    "create table b (id int, foreign key (id) references a (id));"
    "create view v as select id from a;"
    "create sequence s;"
    "create function f() returns int return 1;"
    "create procedure p() select 1;"
    "create event e on schedule every 1 hour do select 1",
    "query": "insert into a values (f() + nextval(s))",
    "delimiter": ";",
    "number_of_queries": 30,
    "iterations": 3,
}


@pytest.mark.parametrize(
    ("workload", "committed"),
    [
        pytest.param({"slap": {"iterations": 2, "queries_per_client": 11}}, 44, id="slap"),
        pytest.param({"slap": OWN}, 90, id="slap-of-ones-own"),
        pytest.param(TPCB, None, id="tpcb"),
    ],
)
def test_nothing_of_the_users_is_dropped_or_changed(
    desk: Desk,
    mariadb: MariaDbServer,
    belongings: str,
    workload: dict[str, object],
    committed: int | None,
) -> None:
    # mysqlslap drops a database of the user's that has the name it works in.
    text = json.loads(slap_on(mariadb.url(database="shop"), slap={}))
    text["workload"] = {"kind": "slap", "clients": 2} | workload
    trials, _ = run(desk, json.dumps(text))
    if committed is not None:
        assert trials["committed"].to_list() == [committed]
    assert trials["committed"][0] > 0
    assert mariadb.contents() == belongings
    assert desk.ours() == []


@contextlib.contextmanager
def held(server: MariaDbServer, lock: str) -> Iterator[None]:
    """Hold a lock of the server's."""
    hold = f"SELECT GET_LOCK('{lock}', 10); SELECT SLEEP(60)"
    where = ["--no-defaults", "--user=root", f"--socket={server.socket}"]
    command = ["mariadb", *where, "--batch", "--unbuffered", "--skip-column-names", "-e", hold]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "1\n"
        try:
            yield
        finally:
            ((sleeping,),) = server.query(
                "SELECT id FROM information_schema.processlist WHERE info = 'SELECT SLEEP(60)'"
            )
            server.query(f"KILL {sleeping}")


def test_a_database_that_has_our_name_is_left_alone(desk: Desk, mariadb: MariaDbServer) -> None:
    before = mariadb.databases()
    # The name of the second trial is known as soon as there is the first, which waits.
    with held(mariadb, "first"):
        waiting = {"pre_query": "SELECT GET_LOCK('first', 60)"}
        child = desk.start(slap_on(mariadb.url(), slap=waiting, blocks=2), name="spec.json")
        desk.wait_for(lambda: mariadb.databases() - before)
        (first,) = mariadb.databases() - before
        assert first.endswith("_t0000")
        second = first.removesuffix("0") + "1"
        mariadb.query(
            f"CREATE DATABASE {second}; CREATE TABLE {second}.t1 (a INT);"
            f"INSERT INTO {second}.t1 VALUES (42)"
        )
    assert child.wait(timeout=60) == 4, desk.said()
    assert f"void: schema `{second}` exists already and is left alone" in desk.said()
    assert mariadb.databases() - before == {second}
    assert mariadb.query(f"SELECT a FROM {second}.t1") == [["42"]]
    # Nor is it on a list of what is to be undone.
    assert "torn down" not in desk.said()
    assert desk.bedplate("clean").stdout == "nothing of ours is left\n"
    assert desk.ours() == []
    mariadb.query(f"DROP DATABASE {second}")
