"""What goes wrong with MariaDB is said, with what to do, and is never a number."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

import bedplate as bp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Desk, MariaDbServer

PROCESS = '[engine]\nkind = "mariadb"\nprovision = "process"\nallow_other_version = true\n'
CONTAINER = '[engine]\nkind = "mariadb"\nallow_other_version = true\n'
TMPFS = '[storage]\nkind = "tmpfs"\n'
SLAP = '[workload]\nkind = "slap"\n'
# Longer than any test waits.
ENDLESS = SLAP + "clients = 2\nslap = { queries_per_client = 1000000 }\n"
PASSWORD = "correct horse"  # noqa: S105 - of a server of this test


def existing(server: MariaDbServer, user: str = "owner") -> str:
    """Return the engine of a server that exists already."""
    where = f'provision = "url"\nurl = "{server.url(user)}"\n'
    return f'[engine]\nkind = "mariadb"\nversion = "10"\n{where}'


@pytest.fixture
def users(mariadb: MariaDbServer) -> Iterator[None]:
    """Make users who cannot get in, each for a reason of its own."""
    names = {
        "alice": f"VIA mysql_native_password USING PASSWORD('{PASSWORD}')",
        "pam": "VIA pam USING 'other'",
        "www-data": "VIA unix_socket",
    }
    mariadb.query("INSTALL SONAME 'auth_pam_v1'")
    for name, identified in names.items():
        mariadb.query(f"CREATE USER `{name}` IDENTIFIED {identified}")
        mariadb.query(rf"GRANT ALL ON `bedplate\_%`.* TO `{name}`")
    yield
    mariadb.query("DROP USER alice, pam, `www-data`; UNINSTALL SONAME 'auth_pam_v1'")


def refused(desk: Desk, server: MariaDbServer, spec: str, status: int) -> str:
    """Run a spec that is refused before anything is made; return what is said of it."""
    before = server.databases()
    done = desk.run(spec)
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout == ""
    assert server.databases() == before
    assert not desk.out.exists()
    assert desk.ours() == []
    return done.stderr


@pytest.mark.parametrize("engine", [PROCESS, CONTAINER], ids=["process", "container"])
@pytest.mark.parametrize(
    ("settings", "room", "origin"),
    [
        pytest.param("settings = { max_connections = 10 }\n", 10, "", id="declared"),
        pytest.param("", 151, " (its default)", id="default"),
    ],
)
def test_more_clients_than_connections_are_refused(
    desk: Desk, engine: str, settings: str, room: int, origin: str
) -> None:
    clients = room + 1
    done = desk.run(engine + settings + TMPFS + SLAP + f"clients = {clients}\n")
    assert done.returncode == 2, done.stdout + done.stderr
    key = "`engine.settings.max_connections`"
    error = f"`workload.clients` is {clients}, but {key} leaves room for {room}{origin}"
    assert f"error: {error}\n" in done.stderr
    assert f"hint: set {key} to at least {clients}\n" in done.stderr
    desk.assert_nothing_made()


def test_as_many_clients_as_connections_are_let_in(desk: Desk) -> None:
    settings = "settings = { max_connections = 10 }\n"
    done = desk.run(PROCESS + settings + TMPFS + SLAP + "clients = 10\n")
    assert done.returncode == 0, done.stdout + done.stderr
    trials = bp.load_run(desk.runs()[-1]).trials
    assert trials["committed"].to_list() == [110]
    desk.assert_nothing_left()


def test_more_clients_than_an_existing_server_has_free_are_refused(
    desk: Desk, mariadb: MariaDbServer
) -> None:
    mariadb.query("SET GLOBAL max_connections = 10")
    try:
        said = refused(desk, mariadb, existing(mariadb) + SLAP + "clients = 10\n", 2)
    finally:
        mariadb.query("SET GLOBAL max_connections = DEFAULT")
    # The connection of the statement above may not have gone yet.
    free = rf"the (9|10) connections that are free on {re.escape(str(mariadb.socket))}"
    error = rf"error: `workload.clients` = 10 does not fit into {free} \("
    assert re.search(error, said), said
    assert "hint: lower `workload.clients`, or raise the server's `max_connections`\n" in said


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize("password", ["wrong", ""], ids=["wrong", "none"])
def test_a_wrong_password_is_refused(desk: Desk, mariadb: MariaDbServer, password: str) -> None:
    spec = existing(mariadb, "alice") + SLAP
    desk.env["BEDPLATE_PASSWORD"] = password
    said = refused(desk, mariadb, spec, 5)
    used = "YES" if password else "NO"
    denied = f"Access denied for user 'alice'@'localhost' (using password: {used})"
    assert f"error: cannot connect to {mariadb.socket}: 1045 (28000): {denied}\n" in said
    assert "hint: check `engine.url`; the password comes from BEDPLATE_PASSWORD\n" in said
    assert "wrong" not in said
    # It is the password alone that was wrong.
    desk.env["BEDPLATE_PASSWORD"] = PASSWORD
    done = desk.run(spec)
    assert done.returncode == 0, done.stdout + done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    files = [path for path in desk.root.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(
    ("user", "named"),
    [
        # What PAM's plugin wants of a client is called so.
        ("pam", "the server asks for the authentication plugin `dialog`"),
        # The server never says so, but this error has no other reason.
        ("www-data", "(plugin `unix_socket`)"),
    ],
)
def test_a_plugin_that_is_not_known_is_named(
    desk: Desk, mariadb: MariaDbServer, user: str, named: str
) -> None:
    desk.env["BEDPLATE_PASSWORD"] = PASSWORD
    spec = existing(mariadb, user) + SLAP
    said = refused(desk, mariadb, spec, 5)
    assert f"error: cannot connect to {mariadb.socket}: " in said
    assert named in said
    # The way out is one, when it is followed.
    (remedy,) = [line for line in said.splitlines() if line.startswith("hint: ")]
    statement = remedy[remedy.index("ALTER USER") :].replace("'...'", f"'{PASSWORD}'")
    mariadb.query(statement.replace("`HOST`", "`%`"))
    done = desk.run(spec)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tls_that_an_existing_server_does_not_offer_is_refused(
    desk: Desk, mariadb: MariaDbServer
) -> None:
    said = refused(desk, mariadb, existing(mariadb) + 'tls = "require"\n' + SLAP, 5)
    reason = '`engine.tls` is "require", but the server does not offer TLS'
    assert f"error: cannot connect to {mariadb.socket}: {reason}\n" in said
    assert "hint: give the server a certificate and a key (`ssl_cert`, `ssl_key`), or set " in said


def test_tls_that_our_own_server_does_not_offer_is_an_error(desk: Desk) -> None:
    done = desk.run(PROCESS + 'tls = "require"\n' + TMPFS + SLAP)
    assert done.returncode == 5, done.stdout + done.stderr
    assert '`engine.tls` is "require", but the server does not offer TLS' in done.stdout
    (row,) = bp.load_run(desk.runs()[-1]).trials.to_dicts()
    assert (row["trust"], row["tps"], row["committed"]) == ("void", None, 0)
    assert "hint: declare `ssl_cert` and `ssl_key` in `engine.settings`, or set " in row["error"]
    desk.assert_nothing_left()


def kill_the_container(desk: Desk, _: MariaDbServer) -> None:
    subprocess.run(["docker", "kill", desk.resource_name()], check=True, capture_output=True)


def kill_the_process(desk: Desk, _: MariaDbServer) -> None:
    pid_file = next((desk.state / "work").rglob("mysqld.pid"))
    os.kill(int(pid_file.read_text()), signal.SIGKILL)


def kill_the_existing(_: Desk, server: MariaDbServer) -> None:
    server.kill()


@pytest.mark.parametrize(
    ("engine", "kill", "how"),
    [
        pytest.param(
            lambda _: CONTAINER + TMPFS,
            kill_the_container,
            "the server ended: exited with status 137",
            id="container",
        ),
        pytest.param(
            lambda _: PROCESS + TMPFS,
            kill_the_process,
            "the server ended: was killed by signal 9",
            id="process",
        ),
        pytest.param(
            existing,
            kill_the_existing,
            "the server ended: is gone: cannot connect to ",
            id="existing",
        ),
    ],
)
def test_a_server_that_is_killed_makes_the_trial_void(
    desk: Desk,
    mariadb: MariaDbServer,
    engine: Callable[[MariaDbServer], str],
    kill: Callable[[Desk, MariaDbServer], None],
    how: str,
) -> None:
    before = mariadb.databases()
    run = desk.start(engine(mariadb) + ENDLESS)
    desk.wait_for(lambda: desk.seconds() >= 1)
    kill(desk, mariadb)
    try:
        assert run.wait(timeout=60) == 4, desk.said()
    finally:
        mariadb.ensure_started()

    results = bp.load_run(desk.runs()[-1])
    (row,) = results.trials.to_dicts()
    numbers = ("tps", "queries_per_second", "pts_queries_per_second", "service_time_ms_p50")
    assert [row[number] for number in numbers] == [None] * 4
    assert (row["trust"], row["clients_lost"]) == ("void", 2)
    assert row["trust_reasons"].startswith("2 clients were lost: ")
    assert how in row["trust_reasons"]
    assert f"void: {how}" in desk.said()
    # The second before it is kept.
    assert results.intervals["committed"].sum() > 0
    if kill is kill_the_existing:
        # What lies in a server that is down is removed when it is up again.
        assert "not everything could be torn down: schema bedplate_" in desk.said()
        assert len(mariadb.databases() - before) == 1
        assert desk.bedplate("clean").stdout.startswith("removed schema bedplate_")
    assert mariadb.databases() == before
    desk.assert_nothing_left()
