"""`understudy sql` and `query` over a served checkpoint: lookups, one version, limits, outputs, ends (Q36-Q45)."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from tests.support.checkpoint.handmade_types import HandmadeTypes
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.services.command_line import UNDERSTUDY, ask, environment
from tests.support.services.guarded import Keys
from tests.support.spark.queries import wait_until

from understudy import Client, ForbiddenError
from understudy.sql import reads
from understudy.sql.errors import SqlError
from understudy.sql.session import SqlSession, query
from understudy.terminal.exits import ExitCode

NAMES = """
[op0]
name = "Flights.By-Tail"
[op1]
name = "order"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("types")
    names = folder / "names.toml"
    names.write_text(NAMES)
    checkpoint = HandmadeTypes(folder / "checkpoint").create().add(1, 2)
    with served_node(checkpoint.path, folder / "data", aliases=names) as running:
        running.wait_for_version(2, store="order")
        yield running


@pytest.fixture(scope="module")
def client(node: ServedNode) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{node.port}") as client:
        yield client


@pytest.fixture(scope="module")
def session(client: Client) -> Iterator[SqlSession]:
    with SqlSession(client) as session:
        yield session


def leases(node: ServedNode) -> Any:
    return node.get("/admin/v1/snapshots").body["snapshots"]


def sql(node: ServedNode, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return ask("sql", *arguments, stdin=stdin, variables={"UNDERSTUDY_URL": f"http://127.0.0.1:{node.port}"})


KEYED = 'select value, "Group" from "order" where '


@pytest.mark.parametrize(
    ("statement", "parameters", "keys"),
    [
        (KEYED + "\"key.n\" = 3 and key = 'key-3'", None, 1),
        (KEYED + '"key.n" = ? and key = ?', [3, "key-3"], 1),
        (
            'with q as (select * from "order") ' + KEYED.replace('"order"', "q") + "\"key.n\" = 3 and key = 'key-3'",
            None,
            1,
        ),
        (KEYED + "\"key.n\" in (3, 5) and key in ('key-3', 'no')", None, 4),
    ],
)
def test_a_key_equality_makes_one_lookup_and_no_scan(
    session: SqlSession, statement: str, parameters: Any, keys: int
) -> None:
    """Q36."""
    with session.run(statement, parameters) as answer:
        assert answer.table().to_pylist() == [{"value": 2, "Group": "b"}]
    (read,) = answer.account
    assert len(read.access.keys or ()) == keys
    assert read.requests == 1


def test_times_are_shown_in_the_zone_of_exports(session: SqlSession) -> None:
    with session.run("select current_setting('TimeZone') zone") as answer:
        assert answer.table().to_pylist() == [{"zone": "UTC"}]


def test_a_join_is_of_one_version_while_batches_commit(tmp_path: Path) -> None:
    """Q39: each version of `op1` says which it is."""
    checkpoint = HandmadeTypes(tmp_path / "checkpoint").create().add(1)
    with (
        served_node(checkpoint.path, tmp_path / "data") as running,
        Client(f"http://127.0.0.1:{running.port}") as client,
        SqlSession(client) as session,
    ):
        running.wait_for_version(1, store="op1")
        statement = (
            "select a.value x, b.value y, count(*) over () c from op1 a join op1 b on a.key = b.key join op0 on true"
        )
        with session.run(statement) as answer:
            batches = answer.batches()
            first = next(batches)
            checkpoint.add(2)
            running.wait_for_version(2, store="op1")
            found = {(row["x"], row["y"]) for batch in (first, *batches) for row in batch.to_pylist()}
        assert found == {(1, 1)}
        assert answer.version == 1
        assert query(client, "select max(value) v from op1").to_pylist() == [{"v": 2}]
        older = query(client, "select max(value) v from op1", version=1)
        assert older.to_pylist() == [{"v": 1}]
        assert orjson.loads(older.schema.metadata[b"understudy"])["version"] == 1


@pytest.mark.parametrize("ends", ["to its end", "early", "by an error"])
def test_a_lease_ends_with_its_statement(node: ServedNode, session: SqlSession, ends: str) -> None:
    """Q41."""
    statement = 'select * from "Flights.By-Tail"'
    with session.run(f"{statement} limit 1" if ends == "early" else statement) as answer:
        assert len(leases(node)) == 1
        if ends == "to its end":
            answer.table()
    if ends == "by an error":
        with pytest.raises(SqlError), session.run(f"{statement} where txt::int = 1") as answer:
            answer.table()
    assert leases(node) == []


SECRET = pa.table({"password": ["x"]})


@pytest.mark.parametrize(
    "statement",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from read_text('/etc/passwd')",
        "select * from glob('/etc/*')",
        "copy (select 1) to '/tmp/x.csv'",
        "copy (select 1) to stdout",
        "attach '/tmp/x.db'",
        "install httpfs",
        "load httpfs",
        "set threads = 1",
        "reset memory_limit",
        "pragma database_list",
        "create table x (a int)",
        "explain analyze create table x as select 1",
        "call pragma_version()",
        "select * from SECRET",
        "select 1; select 2",
        "",
    ],
)
def test_statements_read_stores_and_nothing_else(session: SqlSession, statement: str) -> None:
    """Q42."""
    assert SECRET.num_rows == 1
    with pytest.raises(SqlError), session.run(statement) as answer:
        answer.table()


def test_a_store_of_others_is_an_unknown_table_and_keys_of_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q44. Roles without the action `export` get pages."""
    monkeypatch.setattr(reads, "MAX_SCAN_ROWS", 7)
    keys = Keys(tmp_path / "credentials.toml")
    keys.role("of-op1", '{stores = ["op1"], actions = ["scan", "point"]}')
    keys.role("of-some", '{stores = ["op0"], actions = ["scan", "point"], key_prefix = ["k3"]}')
    for name, role in (("one", "of-op1"), ("some", "of-some"), ("monitor", "monitor")):
        keys.add(name, role)
    checkpoint = HandmadeTypes(tmp_path / "checkpoint").create().add(1)
    with served_node(checkpoint.path, tmp_path / "data", credentials_file=keys.path) as running:
        running.key = keys["monitor"]
        running.wait_for_version(1)
        url = f"http://127.0.0.1:{running.port}"
        with Client(url, api_key=keys["one"]) as client:
            assert query(client, "select count(*) c from op1").to_pylist() == [{"c": 20}]
            with pytest.raises(SqlError) as caught:
                query(client, "select * from op0")
            assert (caught.value.what, caught.value.fix) == ("there is no table op0", "Did you mean 'op1'?")
        with Client(url, api_key=keys["some"]) as client:
            assert query(client, "select n from op0 where k = 'k3' and n < 60").to_pylist() == [{"n": 3}]
            with pytest.raises(ForbiddenError):
                query(client, "select n from op0")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (['select count(*) from "order"', "--version", "99"], 3, "version-not-yet"),
        (["select 1", "--url", "http://127.0.0.1:1"], 4, "fix:"),
    ],
)
def test_errors_say_what_to_do_and_have_their_exit_codes(
    node: ServedNode, arguments: list[str], code: int, said: str
) -> None:
    done = sql(node, *arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


@pytest.mark.full
def test_ctrl_c_and_a_closed_pipe_end_cleanly(node: ServedNode) -> None:
    """Q41."""
    variables = environment({"UNDERSTUDY_URL": f"http://127.0.0.1:{node.port}"})
    endless = 'select a.*, r.range from "Flights.By-Tail" a, range(100000000) r'
    for how in ("interrupt", "close"):
        process = subprocess.Popen([UNDERSTUDY, "sql", endless], env=variables, stdout=-1, stderr=-1)
        assert process.stdout is not None
        assert process.stdout.readline()
        if how == "interrupt":
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        else:
            process.stdout.close()
            process.wait(60)
            assert process.stderr is not None
            said = process.stderr.read()
            process.stderr.close()
        assert b"Traceback" not in said
        assert process.returncode == {"interrupt": 130, "close": 141}[how], said
        wait_until(lambda: leases(node) == [], what="the end of the lease")


def test_a_statement_beyond_its_memory_spills_or_is_refused(client: Client) -> None:
    """Q40."""
    with SqlSession(client, memory_limit="20MiB") as session:
        many = "select hash(range)::varchar || repeat('x', 40) s from range(400000) order by s"
        with session.run(f"select count(*) c from ({many} limit 399999)") as answer:
            assert answer.table().to_pylist() == [{"c": 399999}]
        with (
            pytest.raises(SqlError, match="--memory-limit"),
            session.run("select list(range) from range(20000000)") as answer,
        ):
            answer.table()


@pytest.mark.full
def test_a_long_list_that_duckdb_does_not_count_is_refused_too(node: ServedNode) -> None:
    for statement in ("select len(range(200000000))", "select length(repeat('x', 2000000000))"):
        arguments = ["sql", statement, "--memory-limit", "64MiB", "--url", f"http://127.0.0.1:{node.port}"]
        with subprocess.Popen([UNDERSTUDY, *arguments], env=environment(), stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            said = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert b"--memory-limit" in said
        assert process.returncode == ExitCode.REFUSED
        assert usage.ru_maxrss * 1024 < 1024**3


def test_the_prompt_answers_completes_and_keeps_its_history(node: ServedNode, tmp_path: Path) -> None:
    variables = environment({"UNDERSTUDY_URL": f"http://127.0.0.1:{node.port}", "XDG_STATE_HOME": str(tmp_path)})
    terminal, theirs = pty.openpty()
    news, said = select.poll(), b""
    news.register(terminal, select.POLLIN)

    def until(text: bytes) -> None:
        nonlocal said
        while text not in said:
            assert news.poll(60_000), f"{text!r} does not come behind {said!r}"
            said += os.read(terminal, 65536)
        said = said.partition(text)[2]  # the next prompt may have come with it

    with subprocess.Popen([UNDERSTUDY, "sql"], env=variables, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        try:
            os.close(theirs)
            until(b"understudy> ")
            os.write(terminal, b'select count(*) as n\nfrom "Flig\t;\n')
            until(b"300")
            until(b"understudy> ")
            os.write(terminal, b"selec;\n")
            until(b"syntax error")
            os.write(terminal, b".quit\n")
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(terminal)
    history = tmp_path / "understudy" / "sql_history"
    assert "Flights.By-Tail" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
