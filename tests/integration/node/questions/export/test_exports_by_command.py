"""`understudy export` against a node: whole files in every form, also when connections break, or no file at all."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import csv as arrow_csv
from pyarrow import parquet
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.oracle.scanned import scanned

from understudy.commands import exporting
from understudy.commands.group import cli
from understudy.terminal import export_files
from understudy.terminal.exits import ExitCode
from understudy_node.questions.export import service as node_exports

VERSION = 3
FORMS = ("parquet", "arrow", "csv", "ndjson")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("exports")
    counts = HandmadeCheckpoint(folder / "counts", partitions=3).create().add(*range(1, VERSION + 1))
    with served_node(counts.path, folder / "data") as served:
        served.wait_for_version(VERSION, partitions=3)
        yield served


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_exports, "PART_ROWS", 2)
    monkeypatch.setattr(node_exports, "PLAIN_ARROW", (2, 1 << 20))
    monkeypatch.setattr(exporting, "FIRST_PAUSE_S", 0.0)


def exported(port: int, out: Path | str, *options: str) -> Result:
    return CliRunner().invoke(cli, ["export", "op0", "--out", str(out), "--url", f"127.0.0.1:{port}", *options])


def rows_of(path: Path) -> list[dict[str, object]]:
    """The rows of a file, flat."""
    match path.suffix:
        case ".parquet":
            rows = parquet.read_table(path).to_pylist()
        case ".arrow":
            rows = pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
        case ".csv":
            rows = arrow_csv.read_csv(path).to_pylist()
        case _:
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            rows = [{**line["key"], **line["value"]} for line in lines]
    return [{name: each for name, each in row.items() if name != "problem"} for row in rows]


def expected(node: ServedNode) -> list[dict[str, object]]:
    return [{**row["key"], **row["value"]} for row in scanned(node, "op0")]


@pytest.mark.parametrize("form", FORMS)
def test_a_file_has_every_row_and_its_name_says_its_form(form: str, node: ServedNode, tmp_path: Path) -> None:
    out = tmp_path / f"rows.{form}"
    result = exported(node.port, out)
    assert (result.exit_code, result.output) == (0, "")
    assert rows_of(out) == expected(node)
    assert [each.name for each in tmp_path.iterdir()] == [out.name]


def test_the_standard_output_takes_rows_and_nothing_else(node: ServedNode) -> None:
    result = exported(node.port, "-", "--where", '["count", ">", 2]')
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows == scanned(node, "op0", where=[["count", ">", 2]])


@pytest.mark.parametrize("form", FORMS)
def test_an_export_goes_on_after_each_broken_connection(form: str, node: ServedNode, tmp_path: Path) -> None:
    """Q11: connections break after more and more bytes, as those through a failing proxy do."""
    out = tmp_path / f"rows.{form}"
    with cutting(node.port, at=[500, 700, 900, 1_500, 2_500, 4_000]) as proxy:
        result = exported(proxy.port, out, "--max-lag", "5")
        assert result.exit_code == 0, result.output
        assert proxy.connections > 1
    assert rows_of(out) == expected(node)


@pytest.mark.parametrize("form", FORMS)
def test_an_export_without_cursors_begins_its_file_again(
    form: str, node: ServedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes give none to readers who may see some keys only."""
    asked, read, make = exporting.FORMATS[form]
    without = (asked, lambda body: (piece._replace(cursor=None) for piece in read(body)), make)
    monkeypatch.setitem(exporting.FORMATS, form, without)
    monkeypatch.setattr(export_files, "GROUP_BYTES", 1)
    out = tmp_path / f"rows.{form}"
    with cutting(node.port, at=[500 if form == "csv" else 2_000]) as proxy:
        result = exported(proxy.port, out)
        assert (result.exit_code, proxy.connections) == (0, 2), result.output
    assert rows_of(out) == expected(node)


def test_an_export_that_cannot_be_whole_leaves_no_file(node: ServedNode, tmp_path: Path) -> None:
    with cutting(node.port, at=[600] * 100) as proxy:
        result = exported(proxy.port, tmp_path / "rows.csv")
        assert proxy.connections == exporting.ATTEMPTS, "a CSV has no cursors, so no attempt gets further"
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "error:" in result.output
    assert list(tmp_path.iterdir()) == []
    result = exported(node.port, tmp_path / "rows.csv", "--where", '["nowhere", "=", 1]')
    assert result.exit_code == ExitCode.USAGE
    assert "nowhere" in result.output
    result = exported(node.port, tmp_path / "no" / "such" / "folder.csv")
    assert (result.exit_code, "cannot be written" in result.output) == (ExitCode.REFUSED, True)


class Cutting:
    """A proxy that breaks its connections after so many bytes of the answer, and not those behind the last number."""

    def __init__(self, target: int, at: list[int]) -> None:
        self._target, self._at = target, at
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            limit = self._at[self.connections] if self.connections < len(self._at) else None
            self.connections += 1
            with client, socket.create_connection(("127.0.0.1", self._target)) as server, suppress(OSError):
                request = client.recv(65_536)
                while b"\r\n\r\n" not in request or not request.endswith(b"}"):
                    request += client.recv(65_536)
                server.sendall(request)
                sent = 0
                while data := server.recv(65_536):
                    part = data if limit is None else data[: limit - sent]
                    client.sendall(part)
                    sent += len(part)
                    if sent == limit:
                        break

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def cutting(target: int, *, at: list[int]) -> Iterator[Cutting]:
    proxy = Cutting(target, at)
    thread = threading.Thread(target=proxy.run)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
