"""`understudy sql --serve mysql` asked by real clients: drivers, SQLAlchemy, pandas, and what BI tools send."""

from __future__ import annotations

import math
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import mysql.connector
import pandas as pd  # type: ignore[import-untyped]
import pymysql
import pytest
import sqlalchemy as sa
from tests.support.checkpoint.handmade_types import ROWS, HandmadeTypes
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.services.certificates import Files, Signer
from tests.support.services.guarded import WRONG, Keys
from tests.support.spark.queries import wait_until
from tests.support.sql.mysql_server import MysqlServer, mysql_server, rows
from tests.support.sql.tool_statements import GRAFANA, OTHERS, SUPERSET, statements

from understudy import Client
from understudy.client.transports.sockets import MAX_IDLE
from understudy.sql.mysql.serve import serve
from understudy.sql.mysql.server import Limits, Servers
from understudy.sql.query import query
from understudy_shared.base.errors import UnderstudyError


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    keys = Keys(tmp_path_factory.mktemp("keys") / "credentials.toml")
    keys.role("all-of-it", '{stores = ["*"], actions = ["scan", "point", "export"]}')
    keys.role("of-op1", '{stores = ["op1"], actions = ["scan", "point"]}')
    for name, role in (("all", "all-of-it"), ("one", "of-op1"), ("monitor", "monitor")):
        keys.add(name, role)
    return keys


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("types")
    checkpoint = HandmadeTypes(folder / "checkpoint").create().add(1, 2)
    with served_node(checkpoint.path, folder / "data", credentials_file=keys.path) as running:
        running.key = keys["monitor"]
        running.wait_for_version(2)
        yield running


@pytest.fixture(scope="module")
def url(node: ServedNode) -> str:
    return f"http://127.0.0.1:{node.port}"


@pytest.fixture(scope="module")
def server(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    with mysql_server(url, tmp_path_factory.mktemp("server"), "--max-connections", "20") as running:
        yield running


@pytest.fixture
def connection(server: MysqlServer, keys: Keys) -> Iterator[Any]:
    with server.connect(keys["all"]) as connection:
        yield connection


def leases(node: ServedNode) -> Any:
    return node.get("/admin/v1/snapshots").body["snapshots"]


VALUES = (
    "select n, b, l, f, d, small, big, txt, raw, day, ts, w, tags, m, took from op0 where k = 'k3' and n in (3, 63)"
)


def plain(row: Any) -> list[Any]:
    """The values of a row. Drivers have numbers of 32 bits by other numbers of 64; texts, too, as bytes."""
    texts = [each.decode() if isinstance(each, bytearray) else each for each in row]
    return [f"{each:.6g}" if isinstance(each, float) else each for each in texts]


def test_drivers_read_values_of_all_types_by_both_protocols(server: MysqlServer, keys: Keys, url: str) -> None:
    with server.connect(keys["all"]) as connection:
        found = [plain(row) for row in rows(connection, VALUES)]
    first = next(row for row in found if row[0] == 3)
    assert first[1:8] == [1, 3, "0.1", "-2.25", Decimal("-0.05"), Decimal("0.0003"), "b"]
    assert first[8:11] == [b"\x00\x00\x01", date(2013, 1, 1), datetime(2013, 1, 1, 3, tzinfo=UTC).replace(tzinfo=None)]
    start, end = "2013-01-04T00:00:00.000000Z", "2013-01-05T00:00:00.000000Z"
    assert first[11:] == [f'{{"start":"{start}","end":"{end}"}}', '["","a","b"]', "{}", "PT4.5S"]
    options = {"host": "127.0.0.1", "port": server.port, "user": "reader", "password": keys["all"]}
    with mysql.connector.connect(**options, use_pure=True) as other:
        with other.cursor() as cursor:
            cursor.execute(VALUES)
            assert sorted(map(repr, map(plain, cursor.fetchall()))) == sorted(map(repr, found))
        with other.cursor(prepared=True) as cursor:
            cursor.execute(VALUES.replace("'k3'", "?").replace("3, 63", "?, ?"), ("k3", 3, 63))
            assert sorted(map(repr, map(plain, cursor.fetchall()))) == sorted(map(repr, found))
    with Client(url, api_key=keys["all"]) as client:
        expected = query(client, "select d from op0 where isnan(d) or isinf(d)")["d"].to_pylist()
    with server.connect(keys["all"]) as connection:
        numbers = rows(connection, "select d from op0 where d > 1e301 or d < -1e301")
    assert sorted(repr(each) for (each,) in numbers) == sorted(map(repr, expected))
    assert any(math.isnan(each) for (each,) in numbers)


def test_parameters_of_prepared_statements_are_values_and_no_sql(server: MysqlServer, keys: Keys) -> None:
    options = {"host": "127.0.0.1", "port": server.port, "user": "reader", "password": keys["all"]}
    with mysql.connector.connect(**options, use_pure=True) as other, other.cursor(prepared=True) as cursor:
        for given in ("k3' or '1' = '1", "k3\\", "\\' or 1=1 -- ", "it's", "\\1"):
            cursor.execute("select count(*), '?' from op0 where k = ? or txt = ?", (given, given))
            assert [list(row) for row in cursor.fetchall()] == [[0, "?"]]
        moment = datetime(2013, 1, 1, 3, 0, 0, 1, tzinfo=UTC).replace(tzinfo=None)
        cursor.execute("select ?, ?, ?, ?, ?", (moment, Decimal("12.50"), None, 1.5, date(2013, 1, 2)))
        (row,) = [plain(each) for each in cursor.fetchall()]
        assert row == ["2013-01-01 03:00:00.000001", Decimal("12.50"), None, "1.5", "2013-01-02"]


def test_sqlalchemy_reflects_tables_and_pandas_reads_them(server: MysqlServer, keys: Keys) -> None:
    engine = sa.create_engine(f"mysql+pymysql://reader:{keys['all']}@127.0.0.1:{server.port}/understudy")
    inspector = sa.inspect(engine)
    assert (inspector.get_schema_names(), inspector.get_view_names()) == (["understudy", "information_schema"], [])
    assert inspector.get_table_names() == ["op0", "op1"]
    types = {each["name"]: str(each["type"]) for each in inspector.get_columns("op0")}
    assert [types[name] for name in ("k", "b", "l", "big", "raw", "day", "ts", "w")] == [
        *("LONGTEXT", "TINYINT", "BIGINT", "DECIMAL(38, 4)", "LONGBLOB", "DATE", "DATETIME", "JSON"),
    ]
    assert (inspector.get_indexes("op0"), inspector.get_foreign_keys("op0")) == ([], [])
    metadata = sa.MetaData()
    metadata.reflect(engine)
    table = metadata.tables["op0"]
    with engine.connect() as connection:
        asked = sa.select(table.c.k, sa.func.count()).where(table.c.n < 100).group_by(table.c.k).order_by(table.c.k)
        found = connection.execute(asked.limit(2)).fetchall()
    assert [each[0] for each in found] == [None, ""]
    frame = pd.read_sql("select k, n, d, ts from op0 where n < %(n)s", engine, params={"n": 4})
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        "k": "str",
        "n": "int64",
        "d": "float64",
        "ts": "datetime64[us]",
    }
    assert len(pd.read_sql_table("op1", engine)) == 20
    engine.dispose()


EMPTY = ("SHOW SESSION STATUS", "SHOW KEYS", "SHOW PROCEDURE", "SET", "START", "ROLLBACK")


def test_what_bi_tools_send_is_answered(connection: Any) -> None:
    for statement in [each for text in (GRAFANA, SUPERSET, OTHERS) for each in statements(text)]:
        found = rows(connection, statement)
        assert bool(found) != statement.startswith(EMPTY), statement


def test_mysqls_functions_have_mysqls_meaning(connection: Any) -> None:
    """1 January 2013 was a Tuesday."""
    asked = (
        "select dayofweek(ts), weekday(ts), week(ts), unix_timestamp(ts), from_unixtime(1356998400), 7 div 2, 7 / 2, "
        "1 / 0, concat('a', null), if(n is null, 1, 2), date_format(ts, '%d.%m.%Y %H:%i'), `n` <=> null "
        "from op0 where ts = '2013-01-01 00:00:00' and n > 0 limit 1"
    )
    (found,) = rows(connection, asked)
    moment = datetime(2013, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    assert list(found[:2]) == [3, 1]
    assert list(found[3:]) == [1356998400, moment, 3, 3.5, None, None, 2, "01.01.2013 00:00", 0]
    with connection.cursor() as cursor:
        cursor.execute("select count(*), max(n) from op0 limit 0, 5")
        assert [each[0] for each in cursor.description] == ["COUNT(*)", "MAX(n)"]
        assert cursor.fetchall() == ((ROWS, ROWS - 1),)
        cursor.execute("set sql_select_limit = 3")
        cursor.execute("select n from op0")
        assert len(cursor.fetchall()) == 3


@pytest.mark.parametrize(
    ("statement", "code", "said"),
    [
        ("insert into op0 values (1)", 1105, "INSERT is not allowed"),
        ("update op0 set n = 1", 1105, "UPDATE is not allowed"),
        ("create table x (a int)", 1105, "CREATE is not allowed"),
        ("lock tables op0 read", 1105, "LOCK TABLES is not allowed"),
        ("call x()", 1105, "CALL is not allowed"),
        ("select * from op0 into outfile '/tmp/x'", 1064, "syntax"),
        ("select load_file('/etc/passwd')", 1105, "load_file does not exist"),
        ("select * from read_csv('/etc/passwd')", 1105, "a function is not allowed as a table"),
        ("select * from `/etc/passwd`", 1146, "there is no table"),
        ("select getenv('HOME')", 1105, "getenv does not exist"),
        ("select sleep_ms(100000)", 1105, "cannot be stopped"),
        ("selec 1", 1064, "syntax"),
        ("select 1; drop table op0", 1105, "2 statements"),
        ("/* nothing */", 1065, "no statement"),
        ("select nope from op0", 1054, "op0 has k, n,"),
        ("select * from op00", 1146, "Did you mean 'op0'?"),
        ("select * from other.op0", 1049, "no database other"),
        ("select * from mysql.user", 1049, "no database mysql"),
        ("select * from information_schema.innodb_trx", 1146, "information_schema.innodb_trx"),
        ("select @@nothing", 1193, "no variable nothing"),
        ("select @mine", 1105, "variable of a user"),
        ("show replicas", 1235, "Known are"),
        ("show create table nope", 1146, "no table nope"),
        ("set time_zone = 'Europe/Berlin'", 1105, "times are in UTC"),
        ("set @@nothing = 1", 1193, "nothing"),
        ("use other", 1049, "no database other"),
        ("kill 1", 1105, "no connection 1 of this key"),
        ("select txt + 1 from op0 where txt = 'a'", 1105, "No function matches"),
        (f"select {'(' * 3000}1{')' * 3000}", 1105, "too deeply"),
        ("select date '9999-12-31' + interval 1 year", 1105, "has no form in MySQL"),
    ],
)
def test_what_cannot_be_answered_is_an_error_and_the_session_goes_on(
    connection: Any, statement: str, code: int, said: str
) -> None:
    with pytest.raises(pymysql.MySQLError) as caught:
        rows(connection, statement)
    assert caught.value.args[0] == code, caught.value
    assert said in caught.value.args[1]
    assert rows(connection, "select 1") == [(1,)]


def test_keys_are_passwords_and_grants_are_those_of_the_servers(server: MysqlServer, keys: Keys) -> None:
    for wrong in ("", WRONG, "no key", "päss"):
        with pytest.raises(pymysql.OperationalError, match="Access denied") as caught:
            server.connect(wrong)
        assert caught.value.args[0] == 1045
    with server.connect(keys["one"]) as connection:
        assert rows(connection, "show tables") == [("op1",)]
        assert rows(connection, "select count(*) from op1") == [(20,)]
        with pytest.raises(pymysql.ProgrammingError, match="no table op0"):
            rows(connection, "select * from op0")


def test_a_client_that_goes_on_after_a_refused_login_is_cut_off(server: MysqlServer) -> None:
    class Stubborn(pymysql.connections.Connection):  # type: ignore[misc]
        def _request_authentication(self) -> None:
            with pytest.raises(pymysql.OperationalError):
                super()._request_authentication()

        def ping(self, *_: Any) -> None:
            pass

    options = {"host": "127.0.0.1", "port": server.port, "user": "x", "password": WRONG, "autocommit": None}
    with pytest.raises(pymysql.MySQLError):
        Stubborn(**options).query("select count(*) from op0")


def error_of(connection: Any, statement: str) -> str:
    with pytest.raises(pymysql.MySQLError) as caught:
        rows(connection, statement)
    return str(caught.value)


def test_statements_end_by_their_deadlines_a_kill_or_the_end_of_their_connection(
    node: ServedNode, server: MysqlServer, keys: Keys
) -> None:
    endless = "select count(*) from op0 a, op0 b, op0 c, op0 d where a.n + b.n * c.n > d.n"
    with server.connect(keys["all"]) as first, server.connect(keys["all"]) as second:
        rows(first, "set max_execution_time = 300")
        with pytest.raises(pymysql.OperationalError, match=r"longer than 0\.3 s"):
            rows(first, endless)
        wait_until(lambda: leases(node) == [], what="the end of the first")
        rows(first, "set max_execution_time = 0")
        said: list[Any] = []
        thread = threading.Thread(target=lambda: said.append(error_of(first, endless)))
        thread.start()
        wait_until(lambda: len(leases(node)) == 1, what="a statement")
        rows(second, f"kill query {first.thread_id()}")
        thread.join(60)
        assert "interrupted" in said[0]
        assert rows(first, "select 1") == [(1,)]
        dropped = server.connect(keys["all"])
        dropped._execute_command(3, endless)
        wait_until(lambda: len(leases(node)) == 1, what="a statement")
        dropped._force_close()
        wait_until(lambda: leases(node) == [], what="the end of the lease")


def test_packets_that_are_no_mysql_end_their_connection_alone(server: MysqlServer, connection: Any) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\x01" + b"x" * 1000, struct.pack("<I", 5) + b"\x00", b""):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as raw:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    with pytest.raises(pymysql.MySQLError):
        rows(connection, f"select '{'x' * 2_000_000}'")


def test_connections_above_the_limit_are_refused(server: MysqlServer, keys: Keys) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    try:
        for each in held:
            each.recv(1)
        with pytest.raises(pymysql.OperationalError, match="Too many connections"):
            server.connect(keys["all"])
    finally:
        for each in held:
            each.close()
    wait_until(lambda: can_connect(server, keys["all"]), what="room for a connection")


def can_connect(server: MysqlServer, key: str) -> bool:
    try:
        server.connect(key).close()
    except pymysql.OperationalError:
        return False
    return True


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Signer, Files]:
    signer = Signer(tmp_path_factory.mktemp("tls"))
    return signer, signer.issue("sql")


def test_with_a_certificate_logins_are_by_tls_alone_and_a_signal_ends_all(
    url: str, keys: Keys, tmp_path: Path, certificate: tuple[Signer, Files]
) -> None:
    signer, files = certificate
    flags = ("--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key), "--max-result-rows", "100")
    with mysql_server(url, tmp_path, *flags, "--version", "1") as server:
        context = ssl.create_default_context(cafile=str(signer.file))
        with server.connect(keys["all"], ssl=context) as connection:
            assert rows(connection, "select max(value), count(*) from op1") == [(1, 20)]
            assert rows(connection, "select @@understudy_version") == [(1,)]
            with pytest.raises(pymysql.MySQLError, match="more than 100 rows"):
                rows(connection, "select * from op0")
            with pytest.raises(pymysql.OperationalError, match="over TLS alone"):
                server.connect(keys["all"], ssl_disabled=True)
            assert server.stop() == 0
            with pytest.raises(pymysql.MySQLError):
                rows(connection, "select 1")


def test_what_cannot_be_served_is_refused_at_the_start(
    url: str, keys: Keys, certificate: tuple[Signer, Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: as processes they are a second each."""

    def refusal(listen: str, files: tuple[Path | None, Path | None] = (None, None)) -> UnderstudyError:
        servers = Servers([url], 5.0, 5.0, None, {})
        with pytest.raises(UnderstudyError) as caught:
            serve(servers, listen, limits=Limits(), memory_limit="64MiB", certificate=files[0], key=files[1])
        return caught.value

    assert "there is no certificate" in refusal("0.0.0.0:0").what
    assert "is not an address" in refusal("3306").what
    assert "no certificate" in refusal("127.0.0.1:0", (None, Path("/nothing"))).what
    assert "cannot be listened at" in refusal("192.0.2.1:3306", certificate[1]).what
    monkeypatch.setattr(Servers, "client", lambda self, key: Client(url, api_key=keys["all"]))
    assert "ask for no keys" in refusal("0.0.0.0:0", certificate[1]).what


LIMIT_S = 120
SPARE = 8
"""Threads that a server may keep from then on: its pools and its second DuckDB start when they are needed. Beside them
it keeps connections to the node for the next statements, at most MAX_IDLE.
"""


@pytest.mark.full
@pytest.mark.timeout(900)
def test_two_hundred_connections_and_drops_leave_nothing(node: ServedNode, server: MysqlServer, keys: Keys) -> None:
    def ask(at: int) -> None:
        wait_until(lambda: can_connect(server, keys["all"]), what="room for a connection", limit_s=LIMIT_S)
        connection = server.connect(keys["all"])
        if at % 4 == 0:
            rows(connection, "select count(*) from op0")
        elif at % 4 == 1:
            connection._execute_command(3, "select a.* from op0 a, op0 b, op0 c")
        elif at % 4 == 2:
            connection._execute_command(22, "select ?, k from op0")
        connection._force_close()

    for at in range(8):
        ask(at)
    wait_until(lambda: leases(node) == [], what="the end of the first", limit_s=LIMIT_S)
    before = server.descriptors(), server.threads()
    for at in range(200):
        ask(at)
    wait_until(lambda: leases(node) == [], what="the end of the last", limit_s=LIMIT_S)
    files, threads = before[0] + SPARE + MAX_IDLE, before[1] + SPARE
    wait_until(lambda: server.descriptors() <= files, what=f"at most {files} files", limit_s=LIMIT_S)
    wait_until(lambda: server.threads() <= threads, what=f"at most {threads} threads", limit_s=LIMIT_S)


def test_times_are_in_utc(connection: Any) -> None:
    (found,) = rows(connection, "select now(), utc_timestamp(), @@time_zone")
    assert abs(found[0].replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds() < 3600
    assert found[2] == "UTC"
