"""WebHDFS by a server that says whatever a test wants: what is no reply of HDFS, redirects, tokens, TLS."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
from tests.support.services.certificates import Signer

from understudy_node.checkpoint.hadoop_files import HadoopFiles
from understudy_node.checkpoint.repeating import RepeatLimits
from understudy_node.checkpoint.store_calls import StoreLimits
from understudy_node.checkpoint.webhdfs import WebHdfs
from understudy_shared.base.errors import CheckpointError, SettingsError, VanishedError

QUICK = StoreLimits(renew_ms=0, repeat=RepeatLimits(max_tries=2, first_wait_ms=1, max_wait_ms=5))
TOKEN = "hush-51de"
STATUS = {"FileStatus": {"type": "FILE", "length": 4, "modificationTime": 1_700_000_000_123, "fileId": 7}}


class Server(ThreadingHTTPServer):
    """Answers each operation with a status, a body and perhaps a place to go to. `asked` has the URLs."""

    daemon_threads = True

    def __init__(self, context: SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.port = self.server_address[1]
        self.replies: dict[str, tuple[int, bytes, str]] = {}
        self.asked: list[str] = []

    def say(self, operation: str, status: int, body: bytes | Mapping[str, object], location: str = "") -> None:
        self.replies[operation] = (status, body if isinstance(body, bytes) else orjson.dumps(body), location)

    def refuse(self, status: int, name: str, message: str = "") -> None:
        for operation in ("GETFILESTATUS", "LISTSTATUS", "OPEN"):
            self.say(operation, status, {"RemoteException": {"exception": name, "message": message}})


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        operation = parse_qs(urlsplit(self.path).query).get("op", ["data"])[0]
        status, body, location = self.server.replies.get(operation, (404, b"<html>no such page</html>", ""))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if location:
            self.send_header("location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join(30)
    server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    yield from serving(Server())


def files_of(server: Server, scheme: str = "webhdfs", **environ: str) -> HadoopFiles:
    return HadoopFiles(WebHdfs(f"{scheme}://localhost:{server.port}/ckpt", environ), limits=QUICK)


def test_a_reply_that_is_none_of_hdfs_is_never_absence(server: Server) -> None:
    files = files_of(server)
    for call in (files.stat, files.list, files.read):
        with pytest.raises(CheckpointError, match="does not answer as WebHDFS does") as error:
            call("commits/1")
        assert "HTTP port (9870" in error.value.fix
    for body in (b"", b"[]", b"{}", b'{"FileStatus":{}}', b'{"FileStatuses":{"FileStatus":[{}]}}', b"<html>"):
        server.say("GETFILESTATUS", 200, body)
        server.say("LISTSTATUS", 200, body)
        for call in (files.stat, files.list):
            with pytest.raises(CheckpointError, match="does not answer as WebHDFS does"):
                call("commits/1")
    server.refuse(404, "FileNotFoundException")
    assert files.stat("commits/1") is None
    assert files.list("commits") is None
    with pytest.raises(VanishedError):
        files.read("commits/1")


@pytest.mark.parametrize(
    ("name", "message", "reason"),
    [
        (
            "AccessControlException",
            "Permission denied: user=ann, access=READ, inode=/x",
            "the user ann has no right to",
        ),
        ("InvalidToken", f"token {TOKEN} is expired", "the credentials are refused, or have expired"),
        ("RetriableException", "Namenode is in safe mode", "in safe mode"),
        ("StandbyException", "Operation READ is not supported in state standby", "the NameNode is on standby"),
        ("SecurityException", "SIMPLE authentication is not enabled", "no valid Kerberos ticket or token"),
        ("IOException", TOKEN, r"HDFS failed \(IOException\)"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_repeats_no_token(  # noqa: PLR0917  # fixtures
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, message: str, reason: str
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    caplog.set_level(logging.DEBUG)
    files = files_of(server, WEBHDFS_TOKEN_FILE=str(tmp_path / "token"))
    server.refuse(403, name, message)
    for call in (files.read, files.stat, files.list):
        with pytest.raises(CheckpointError, match=reason) as error:
            call("metadata")
        said = "".join(traceback.format_exception(error.value)) + f"{error.value!r} {files!r} {files.url}"
        assert TOKEN not in said
    assert f"delegation={TOKEN}" in server.asked[-1]
    assert TOKEN not in "".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


def test_a_token_that_was_replaced_is_read_after_a_refusal(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    files = files_of(server, WEBHDFS_TOKEN_FILE=str(token))
    server.refuse(403, "InvalidToken")
    token.write_text("new")
    with pytest.raises(CheckpointError, match="have expired"):
        files.stat("metadata")
    assert [parse_qs(urlsplit(url).query)["delegation"] for url in server.asked] == [["old"], ["new"]]
    server.say("GETFILESTATUS", 200, STATUS)
    assert files.stat("metadata") is not None
    with pytest.raises(SettingsError, match="cannot be read, or is empty"):
        files_of(server, WEBHDFS_TOKEN_FILE=str(tmp_path / "nothing"))


def test_a_read_follows_one_redirect_and_a_proxy_may_answer_at_once(server: Server) -> None:
    files = files_of(server)
    server.say("GETFILESTATUS", 200, STATUS)
    server.say("OPEN", 307, b"", f"http://localhost:{server.port}/data?offset=0")
    server.say("data", 200, b"data")
    assert files.read("metadata") == b"data"
    server.say("OPEN", 200, b"DATA")
    assert files.read("metadata") == b"DATA"
    server.say("OPEN", 307, b"", "")
    with pytest.raises(CheckpointError, match="to HTTP, or nowhere"):
        files.read("metadata")
    server.say("OPEN", 307, b"", f"http://localhost:{server.port}/?op=OPEN")
    with pytest.raises(CheckpointError, match="does not answer as WebHDFS does"):
        files.read("metadata")


def test_a_body_that_is_short_or_long_is_no_file(server: Server) -> None:
    files = files_of(server)
    server.say("GETFILESTATUS", 200, STATUS)
    for body in (b"dat", b"data and more", b""):
        server.say("OPEN", 200, body)
        with pytest.raises(CheckpointError):
            files.read("metadata")


def test_with_tls_the_certificate_is_checked_and_http_is_never_gone_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, context = Signer(tmp_path), SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    for server in serving(Server(context)):
        server.say("GETFILESTATUS", 200, STATUS)
        with pytest.raises(CheckpointError, match="certificate is not trusted"):
            files_of(server, "swebhdfs").stat("metadata")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        files = files_of(server, "swebhdfs")
        assert files.stat("metadata") is not None
        server.say("OPEN", 307, b"", f"http://localhost:{server.port}/data?delegation={TOKEN}")
        with pytest.raises(CheckpointError, match="from HTTPS to HTTP"):
            files.read("metadata")
