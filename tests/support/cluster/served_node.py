"""A node that follows a checkpoint and answers over HTTP, in this process: what tests of its behaviour talk to.

Its application runs on a real port, its files may be a wrapper of the test's (a storage that stops answering, say), and
it looks and retries every few milliseconds, so that tests wait for conditions and not for periods.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.http.app import create_app
from understudy_node.node import Node
from understudy_node.settings import NodeSettings
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.words import HostInfo
from understudy_shared.http.edge import App
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.connection_limits import ConnectionLimits
from understudy_shared.server.service import Service

REFRESH_MS = 20
_TIMEOUT_S = 30
_WAIT_LIMIT_S = 20
"""What is waited for takes well under a second; a loaded machine gets its time."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer; `body` is its JSON."""

    status: int
    content_type: str
    body: dict[str, object]

    @property
    def problem(self) -> str:
        """The type of a problem; fails when the reply is not a problem, or does not say what was wrong."""
        assert self.content_type == "application/problem+json", f"{self.status} {self.body}"
        assert self.body["status"] == self.status
        assert self.body["detail"]
        return str(self.body["type"])

    @property
    def text(self) -> str:
        """Everything it says to a reader."""
        return " ".join(str(self.body.get(part, "")) for part in ("detail", "where", "fix"))


class Served:
    """A client of a port that a node or a router answers on."""

    key: str | None = None
    """The API key that it shows, where the service asks for one."""

    tls: ssl.SSLContext | None = None
    """By which it speaks TLS, where the service does."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, target: str) -> Reply:
        """`GET target`, already percent-encoded."""
        return self._ask("GET", target, None)

    def post(self, target: str, body: bytes) -> Reply:
        return self._ask("POST", target, body)

    def delete(self, target: str) -> Reply:
        """`DELETE target`. An answer without a body is an empty object."""
        return self._ask("DELETE", target, None)

    def text(self, target: str) -> str:
        """What is not JSON, as it is."""
        connection = self._connection()
        try:
            connection.request("GET", target, headers=self._shown())
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def head(self, method: str, target: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers by their names in lower case, and the body as it is."""
        connection = self._connection()
        try:
            connection.request(method, target, headers=self._shown())
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def look_up(self, key: object, *, store: str = "op0", bounds: str = "") -> Reply:
        """One key in the exact form; `bounds` are further query parameters."""
        return self.get(f"/v1/stores/{store}/lookup?key={quote(json.dumps(key))}{'&' if bounds else ''}{bounds}")

    def look_up_all(self, keys: Sequence[object], *, store: str = "op0", **bounds: object) -> list[dict[str, object]]:
        """Many keys, a thousand in each request; each request's answers are of one version per partition."""
        found: list[dict[str, object]] = []
        for start in range(0, len(keys), 1000):
            body = json.dumps({"keys": keys[start : start + 1000], "bounds": bounds}).encode()
            reply = self.post(f"/v1/stores/{store}/lookup", body)
            assert reply.status == 200, reply
            results = reply.body["results"]
            assert isinstance(results, list)
            found += results
        return found

    def lag(self) -> dict[str, object]:
        """The report that operators read."""
        reply = self.get("/admin/v1/lag")
        assert reply.status == 200, reply
        return reply.body

    def not_ready(self) -> str:
        """Why it is not ready, as its probe says; "" when it is."""
        reply = self.get("/readyz")
        reasons = reply.body["reasons"]
        assert isinstance(reasons, list)
        assert (reply.status == 503) == bool(reasons), reply
        return "; ".join(reasons)

    def partitions(self, store: str = "op0") -> list[dict[str, object]]:
        """A store's partitions in the lag report; none before there is anything to serve."""
        stores = self.lag()["stores"]
        assert isinstance(stores, list)
        return [part for each in stores if each["store"] == store for part in each["partitions"]]

    def _connection(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S, context=self.tls)

    def _shown(self) -> dict[str, str]:
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}

    def _ask(self, method: str, target: str, body: bytes | None) -> Reply:
        connection = self._connection()
        try:
            kind = {} if body is None else {"content-type": "application/json"}
            connection.request(method, target, body, {**kind, **self._shown()})
            response = connection.getresponse()
            content = response.read()
            return Reply(response.status, response.headers.get_content_type(), json.loads(content or b"{}"))
        finally:
            connection.close()


class ServedNode(Served):
    """A node and a client of its port."""

    def __init__(self, node: Node, port: int) -> None:
        super().__init__(port)
        self.node = node

    def events(self) -> list[str]:
        """What happened to the checkpoint, oldest first."""
        return [event.what for event in self.node.events]

    def changes(self) -> list[str]:
        """The events that report another layout or history, oldest first."""
        return [what for what in self.events() if what in {"layout", "re-created", "rewound"}]

    def shows(self, version: int, *, partitions: int | None = None, store: str = "op0") -> bool:
        """Whether every partition of a store shows `version`, and there are as many as said."""
        parts = self.partitions(store)
        return (
            bool(parts)
            and partitions in (None, len(parts))
            and all(part["current_offset_position"] == version and part["offset_lag"] == 0 for part in parts)
        )

    def wait_for_version(self, version: int, *, partitions: int | None = None, store: str = "op0") -> None:
        """Return when every partition of a store shows `version` and knows that it is the newest."""
        try:
            wait_until(
                lambda: self.shows(version, partitions=partitions, store=store),
                what=f"version {version}",
                limit_s=_WAIT_LIMIT_S,
            )
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.lag()}") from None

    def wait_for_event(self, what: str) -> None:
        """Return when it was reported."""
        wait_until(lambda: what in self.events(), what=f"event {what!r}, seen {self.events()}", limit_s=_WAIT_LIMIT_S)


@contextmanager
def served_node(
    checkpoint: Path | str,
    data_dir: Path,
    *,
    files: CheckpointFiles | None = None,
    limits: ConnectionLimits | None = None,
    **settings: object,
) -> Iterator[ServedNode]:
    """Follow `checkpoint` until the block ends; at its end no background task may have died."""
    guard = ConnectionGuard(limits)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    options: dict[str, object] = {"lag_refresh_ms": REFRESH_MS, **settings}
    try:
        parsed = NodeSettings(checkpoint=str(checkpoint), data_dir=data_dir, **options)  # type: ignore[arg-type]
        access = parsed.access(parsed.application, parsed.host, is_node=True)
        node = Node(
            parsed,
            files or open_checkpoint_files(checkpoint),
            host=HostInfo("127.0.0.1", port),
            clock=SystemClock(),
        )
    except BaseException:
        listener.close()
        raise
    with served(create_app(node, guard=guard, access=access), listener, guard):
        yield ServedNode(node, port)
        assert node.dead is None


@contextmanager
def served(app: App, listener: socket.socket, guard: ConnectionGuard | None = None) -> Iterator[None]:
    """Run an application on a socket that listens, until the block ends."""
    server = Service(app, guard=guard)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), what="the server's start")
        yield
    finally:
        server.should_exit = True
        thread.join(_TIMEOUT_S)
