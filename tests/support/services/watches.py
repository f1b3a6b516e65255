"""A watcher of keys, over a real socket: what it was sent, event by event."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import orjson

LIMIT_S = 30.0


class Event(NamedTuple):
    """An event: its name, its id, and its data."""

    kind: str
    position: str | None
    data: dict[str, Any]

    @property
    def version(self) -> int:
        return int(self.data["version"])

    @property
    def counted(self) -> int:
        """The count of a word of a handmade checkpoint; 0 where it is absent."""
        return int(self.data["value"]["count"]) if self.data["found"] else 0


class Watcher:
    """One watch. `target` is behind `/v1/stores/`; with `body` it is a POST."""

    def __init__(
        self,
        port: int,
        target: str,
        body: Mapping[str, object] | None = None,
        *,
        last_event_id: str | None = None,
        key: str | None = None,
        receives_bytes: int | None = None,
    ) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        if receives_bytes is not None:  # the kernel holds less for a client that does not read
            self._connection.sock = socket.socket()
            self._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives_bytes)
            self._connection.sock.settimeout(LIMIT_S)
            self._connection.sock.connect(("127.0.0.1", port))
        headers = {"accept": "text/event-stream"}
        headers |= {} if last_event_id is None else {"last-event-id": last_event_id}
        headers |= {} if key is None else {"authorization": f"Bearer {key}"}
        headers |= {} if body is None else {"content-type": "application/json"}
        method, sent = ("GET", None) if body is None else ("POST", orjson.dumps(body))
        self._connection.request(method, f"/v1/stores/{target}", sent, headers)
        self.response = self._connection.getresponse()
        self.last_event_id = last_event_id
        self.retry_ms: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    @property
    def socket(self) -> socket.socket:
        sock = self._connection.sock
        assert sock is not None
        return sock

    @property
    def problem(self) -> str:
        """The type of the problem that it got instead of a stream."""
        assert self.response.headers.get_content_type() == "application/problem+json", self.response.status
        return str(orjson.loads(self.response.read())["type"])

    def next(self) -> Event | None:
        """The next event, without comments; None at the end of the stream."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode():
            if line == "\n":
                if not fields:
                    continue
                if "id" in fields:
                    self.last_event_id = fields["id"]
                self.retry_ms = int(fields["retry"]) if "retry" in fields else self.retry_ms
                return Event(fields["event"], fields.get("id"), orjson.loads(fields["data"]))
            name, _, text = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = text
        assert not fields, f"half an event: {fields}"
        return None

    def take(self) -> Event:
        """The next event about a key."""
        while (event := self.next()) is not None:
            if event.kind != "version":
                return event
        raise AssertionError("the stream ended")

    def until(self, version: int, word: str | None = None) -> list[Event]:
        """The events about a key, or about all, up to a version of it."""
        found: list[Event] = []
        while not found or found[-1].kind == "coalesced" or found[-1].version < version:
            event = self.take()
            if word is None or event.data["key"]["word"] == word:
                found.append(event)
        return found
