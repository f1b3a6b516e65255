"""A real HTTP server that gives prepared replies and remembers what it was asked: for tests of HTTP clients."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

JSON = "application/json"
PROBLEM = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Canned:
    """A reply. `held` keeps it back until it is set."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    held: threading.Event | None = None


@dataclass(slots=True)
class CannedServer:
    """`requests` holds (method and target, body) in the order of arrival; the last reply is repeated."""

    url: str
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    shown: list[str | None] = field(default_factory=list)
    """The credential of each request."""


@contextmanager
def canned_server(replies: Sequence[Canned], tls: ssl.SSLContext | None = None) -> Iterator[CannedServer]:
    """Serve `replies`, one per request, on a free port of loopback; by TLS with a context."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(b"")

        def do_POST(self) -> None:
            self._reply(self.rfile.read(int(self.headers["content-length"])))

        def do_DELETE(self) -> None:
            self._reply(b"")

        def log_message(self, *_: object) -> None:
            """Tests read `requests` instead."""

        def _reply(self, body: bytes) -> None:
            reply = replies[min(len(served.requests), len(replies) - 1)]
            served.requests.append((f"{self.command} {self.path}", body))
            served.shown.append(self.headers["authorization"])
            if reply.held is not None:
                reply.held.wait()
            self.send_response(reply.status)
            self.send_header("content-type", reply.content_type)
            self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # a client that waits no longer
                self.wfile.write(reply.body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        served = CannedServer(f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
