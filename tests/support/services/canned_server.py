"""A real HTTP server that gives prepared replies and remembers what it was asked: for tests of HTTP clients."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

JSON = "application/json"
PROBLEM = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Canned:
    """A reply. `held` keeps it back until it is set. Its keys become those that were asked for."""

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
            content = about_the_keys(reply.body, self.path, body)
            self.send_response(reply.status)
            self.send_header("content-type", reply.content_type)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):  # a client that waits no longer
                self.wfile.write(content)

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


def about_the_keys(reply: bytes, target: str, body: bytes) -> bytes:
    """A reply, about the keys that were asked for, as a server's is."""
    asked = _asked(target, body)
    try:
        answer = json.loads(reply)
    except ValueError:
        return reply
    if not asked or not isinstance(answer, dict):
        return reply
    items = answer.get("results", [answer])
    before = json.dumps(items)
    for item, key in zip(items, asked, strict=False):
        if "key" in item:
            names = [*item["key"], *(f"c{at}" for at in range(len(key)))]
            item["key"] = key if isinstance(key, dict) else dict(zip(names, key, strict=False))
    return reply if json.dumps(items) == before else json.dumps(answer).encode()


def _asked(target: str, body: bytes) -> list[Any]:
    path, _, query = target.partition("?")
    if body:
        return list(json.loads(body).get("keys", ())) if "/stores/" in path else []
    if "key" in parse_qs(query):
        return [json.loads(parse_qs(query)["key"][0])]
    words = path.partition("/stores/")[2].split("/")[2:]
    return [[unquote(word, errors="surrogateescape") for word in words]] if words else []
