"""`understudy debug bundle`: one file about services that answer, refuse, hang, lie or are away."""

from __future__ import annotations

import json
import socket
import stat
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.services.bad_servers import bad_server
from tests.support.services.canned_server import PROBLEM, Canned, canned_server

from understudy.commands.group import cli
from understudy.debug import asking
from understudy.debug.asking import DOCUMENTS

SECRETS = ("hunter2", "Q" * 43, "c2lnbmVk", "planted", "shown-key-of-this-process")
LEAKY = {
    "status": "ok",
    "checkpoint": "abfss://c@a.dfs.example/x?sv=2024&sig=c2lnbmVk",
    "detail": f"redis://u:hunter2@bus/0 refused usk_0123456789abcdef_{'Q' * 43}",
    "secret": "planted",
    "lag": 7,
}


def bundled(path: Path, *arguments: str, urls: Sequence[str], environ: dict[str, str] | None = None) -> Result:
    command = ["debug", "bundle", "--url", ",".join(urls), "--output", str(path), "--timeout-s", "5", *arguments]
    result = CliRunner().invoke(cli, command, env=environ)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def notes(path: Path) -> dict[str, str]:
    """The notes by the end of what was asked."""
    listed = json.loads(contents(path)["bundle.json"])["notes"]
    return {each["source"].rpartition("/")[2]: each["note"] for each in listed}


def closed_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_the_bundle_has_what_services_say_and_no_secret_of_theirs_or_ours(tmp_path: Path) -> None:
    path, log = tmp_path / "b.zip", tmp_path / "node.log"
    log.write_text("started\npassword=hunter2\nBearer shown-key-of-this-process\n")
    environ = {
        "UNDERSTUDY_API_KEY": "shown-key-of-this-process",
        "UNDERSTUDY_REDIS": "redis://u:hunter2@bus/0",
        "UNDERSTUDY_PORT": "7102",
    }
    with canned_server([Canned(json.dumps(LEAKY).encode())]) as served:
        result = bundled(path, "--log", str(log), urls=[served.url], environ=environ)
    assert result.exit_code == 0, result.output
    assert [target for target, _ in served.requests] == [f"GET {asked}" for asked in DOCUMENTS.values()]
    assert served.shown[0] == "Bearer shown-key-of-this-process"
    found = contents(path)
    whole = "".join(found.values()) + result.output
    assert [secret for secret in SECRETS if secret in whole] == []
    (lag,) = [json.loads(text) for name, text in found.items() if name.endswith("/lag.json")]
    assert lag == {
        "status": "ok", "lag": 7, "secret": "***",
        "checkpoint": "abfss://c@a.dfs.example/x?sv=2024&sig=***",
        "detail": "redis://***@bus/0 refused usk_0123456789abcdef_***",
    }  # fmt: skip
    assert found["logs/01-node.log"].startswith("started\n")
    settings = json.loads(found["settings.json"])["settings"]
    assert settings["node"]["port"] == {"value": "7102", "from": "variable UNDERSTUDY_PORT"}
    assert settings["router"]["redis"]["value"] == "redis://***@bus/0"
    assert "click" in json.loads(found["versions.json"])["packages"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_of_a_fleet_one_application_is_asked_for_what_it_alone_knows(tmp_path: Path) -> None:
    with canned_server([Canned(b"{}")]) as served:
        assert bundled(tmp_path / "b.zip", "--application", "orders", urls=[served.url]).exit_code == 0
    asked = {target for target, _ in served.requests}
    assert {"GET /livez", "GET /metrics", "GET /admin/v1/applications/orders/health"} <= asked
    assert "GET /v1/applications/orders/stores" in asked
    assert "GET /admin/v1/health" not in asked


def test_a_service_that_is_away_is_a_line_and_the_others_are_there(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    with canned_server([Canned(b"{}")]) as served:
        result = bundled(path, urls=[closed_url(), served.url])
    assert result.exit_code == 0
    assert "/livez: no answer: cannot connect: Connection refused" in result.output
    assert len([name for name in contents(path) if name.startswith("services/02-")]) == len(DOCUMENTS)
    assert not [name for name in contents(path) if name.startswith("services/01-")]


def test_a_service_that_hangs_costs_its_deadline_once(tmp_path: Path) -> None:
    path, released = tmp_path / "b.zip", threading.Event()
    with canned_server([Canned(b"{}", held=released)]) as served:
        result = bundled(path, "--timeout-s", "0.2", urls=[served.url])
        released.set()
    assert result.exit_code == 0
    assert len(served.requests) == 1
    assert notes(path) == {"livez": "no answer: nothing came in time"}


def test_a_stream_without_an_end_is_cut_by_its_deadline(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"

    def drip(connection: socket.socket, _request: bytes, ended: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        while not ended.wait(0.02):
            connection.sendall(b"1\r\n \r\n")

    with bad_server(drip) as server:
        result = bundled(path, "--timeout-s", "0.3", urls=[server.url])
    assert result.exit_code == 0
    assert notes(path)["livez"].startswith("cut after ")


def test_a_document_is_cut_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_DOCUMENT_BYTES", 1000)
    path = tmp_path / "b.zip"
    with canned_server([Canned(b"{}")] * 9 + [Canned(b"m 1\n" * 1000, content_type="text/plain")]) as served:
        assert bundled(path, urls=[served.url]).exit_code == 0
    (metrics,) = [text for name, text in contents(path).items() if name.endswith("metrics.txt")]
    assert (len(metrics), notes(path)["metrics"]) == (1000, "cut at 1000 bytes")


@pytest.mark.parametrize(
    ("reply", "note"),
    [
        (Canned(b"<html>sign in", content_type="text/html"), "it answered HTML: this is not an Understudy service"),
        (Canned(b"<html>", 502, "text/html"), "status 502"),
        (Canned(b"hello"), "what it answered is not JSON"),
        (Canned(b"[" * 900 + b"]" * 900), "what it answered is not JSON"),
    ],
    ids=["HTML", "HTML of a proxy", "no JSON", "nested JSON"],
)
def test_what_is_no_understudy_service_is_a_line(reply: Canned, note: str, tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    with canned_server([reply]) as served:
        assert bundled(path, urls=[served.url]).exit_code == 0
    assert notes(path)["livez"].startswith(note)
    assert not [name for name in contents(path) if name.startswith("services/")]


def test_a_refusal_is_a_line_with_its_reason_and_a_path_that_nodes_lack_is_none(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    forbidden = {"type": "forbidden", "detail": "the role reader may not see health", "status": 403}
    unknown = {"type": "unknown-path", "detail": "nothing is here", "status": 404}
    replies = [Canned(b"{}"), Canned(b"{}"), Canned(json.dumps(forbidden).encode(), 403, PROBLEM)]
    with canned_server([*replies, Canned(json.dumps(unknown).encode(), 404, PROBLEM)]) as served:
        result = bundled(path, "--json", urls=[served.url])
    assert [each["note"] for each in json.loads(result.stdout)["notes"]] == [
        "status 403: the role reader may not see health"
    ]


def test_a_log_counts_by_its_end_and_one_that_cannot_be_read_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.debug.archive.MAX_LOG_BYTES", 10)
    path, log = tmp_path / "b.zip", tmp_path / "a.log"
    log.write_text("the beginning\nthe end\n")
    result = bundled(path, "--log", str(log), "--log", str(tmp_path / "none.log"), urls=[closed_url()])
    assert result.exit_code == 0
    assert contents(path)["logs/01-a.log"].endswith("the end")
    assert "the beginning" not in contents(path)["logs/01-a.log"]
    assert notes(path)["none.log"] == "it cannot be read: No such file or directory"


def test_a_file_that_exists_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    path.write_text("mine")
    result = bundled(path, urls=[closed_url()])
    assert result.exit_code == 3
    assert "Name another file with --output" in result.output
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "mine"


def test_a_wrong_url_or_settings_file_is_said_before_or_in_the_bundle(tmp_path: Path) -> None:
    assert bundled(tmp_path / "b.zip", urls=["http://:80"]).exit_code == 2
    config = tmp_path / "c.toml"
    config.write_text("port = ")
    path = tmp_path / "c.zip"
    assert bundled(path, "--config", str(config), urls=[closed_url()]).exit_code == 0
    assert "cannot be used" in json.loads(contents(path)["settings.json"])["error"]
