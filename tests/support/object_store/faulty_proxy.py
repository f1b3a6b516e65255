"""A proxy in front of an object store: it counts what is asked, and does to a reply what a test wants done."""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `key` is the object's key without its bucket, or the prefix of a listing."""

    kind: str
    """HEAD, GET or LIST."""
    key: str
    token: str | None
    """The session token or the bearer's token that came with it."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The store's own answer to what it does not do now."""

    status: int
    code: str


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection ends after so many bytes of the body."""

    after: int


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing more is sent after so many bytes of the body (-1: not even a status) until `event` is set."""

    event: threading.Event
    after: int = -1


@dataclass(frozen=True, slots=True)
class Say:
    """Another reply of the store, given in place of this one: an old listing."""

    body: bytes


Fault = Refuse | Cut | Stall | Say


class RequestLog:
    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._noting = threading.Lock()

    def note(self, asked: Asked) -> None:
        with self._noting:
            self.asked.append(asked)

    def kinds(self, *, of: Callable[[Asked], bool] = lambda _: True) -> Counter[str]:
        with self._noting:
            return Counter(asked.kind for asked in self.asked if of(asked))

    def forget(self) -> None:
        with self._noting:
            self.asked.clear()


class FaultyProxy(RequestLog):
    """`fault` is asked before each request is passed on; None passes it on as it is.

    `depth` is how many parts a path has before an object's key.
    """

    def __init__(self, backend: int, *, depth: int = 1) -> None:
        super().__init__()
        self.first_listings: dict[str, bytes] = {}
        """The store's first answer to each listing, by prefix."""
        self.fault: Callable[[Asked], Fault | None] = lambda _: None
        self.backend, self.depth = backend, depth
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="faulty-proxy", kwargs={"poll_interval": 0.05}
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(_LIMIT_S)
        self._server.server_close()


@contextmanager
def faulty_proxy(backend: int, *, depth: int = 1) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(backend, depth=depth)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


class _Handler(BaseHTTPRequestHandler):
    owner: FaultyProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._pass_on()

    def do_HEAD(self) -> None:
        self._pass_on()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _pass_on(self) -> None:
        asked = self._asked()
        self.owner.note(asked)
        fault = self.owner.fault(asked)
        match fault:
            case Refuse(status, code):
                self._reply(status, {"content-type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode())
            case Say(body):
                self._reply(200, {"content-type": "application/xml"}, body)
            case Stall(event, -1):
                event.wait(_LIMIT_S)
                self.close_connection = True
            case _:
                status, headers, body = self._from_backend()
                if asked.kind == "LIST":
                    self.owner.first_listings.setdefault(asked.key, body)
                self._reply(status, headers, body, fault)

    def _asked(self) -> Asked:
        parts = urlsplit(self.path)
        query = dict(pair.partition("=")[::2] for pair in parts.query.split("&"))
        is_listing = "list-type" in query or query.get("comp") == "list"
        key = query.get("prefix", "") if is_listing else parts.path.split("/", self.owner.depth + 1)[-1]
        bearer = self.headers.get("authorization", "").partition("Bearer ")[2]
        token = self.headers.get("x-amz-security-token", bearer or None)
        return Asked("LIST" if is_listing else self.command, unquote(key), token)

    def _from_backend(self) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.owner.backend, timeout=_LIMIT_S)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def _reply(self, status: int, headers: dict[str, str], body: bytes, fault: Fault | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers.items()}.get("content-length", str(len(body)))
        self.send_header("content-length", length if self.command == "HEAD" else str(len(body)))
        with suppress(OSError):  # whoever asked may be gone
            self.end_headers()
            self._send(b"" if self.command == "HEAD" else body, fault)

    def _send(self, body: bytes, fault: Fault | None) -> None:
        match fault:
            case Cut(after):
                self.wfile.write(body[:after])
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            case Stall(event, after):
                self.wfile.write(body[:after])
                event.wait(_LIMIT_S)
                self.close_connection = True
            case _:
                self.wfile.write(body)
