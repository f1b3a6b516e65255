"""A viewer of a stream of server-sent events, over a real socket."""

from __future__ import annotations

import http.client
from typing import Any, NamedTuple, Self

import orjson

LIMIT_S = 30.0


class Event(NamedTuple):
    kind: str
    tick: int | None
    data: dict[str, Any]


class Viewer:
    """One connection to `/admin/v1/events`."""

    def __init__(self, port: int, *, last_event_id: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        headers = {"accept": "text/event-stream"}
        if last_event_id is not None:
            headers["last-event-id"] = last_event_id
        self._connection.request("GET", "/admin/v1/events", headers=headers)
        self.response = self._connection.getresponse()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def next(self) -> Event | None:
        """The next event; None at the end of the stream."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode():
            if line == "\n":
                tick = fields.get("id")
                return Event(fields["event"], None if tick is None else int(tick), orjson.loads(fields["data"]))
            name, _, text = line.rstrip("\n").partition(": ")
            fields[name] = text
        return None

    def until(self, kind: str) -> Event:
        """The next event of a kind."""
        while (event := self.next()) is not None:
            if event.kind == kind:
                return event
        raise AssertionError(f"the stream ended before {kind}")


def applied(document: dict[str, Any], delta: dict[str, Any]) -> dict[str, Any]:
    """The document after a delta, as a page makes it."""
    found = {**document, **delta["sections"], "tick": delta["tick"], "generated_at": delta["generated_at"]}
    rows = {(row["store"], row["partition"]): row for row in document["grid"]["rows"]}
    for gone in delta["grid_gone"]:
        rows.pop(tuple(gone), None)  # it may have come and gone since the document
    rows |= {(row["store"], row["partition"]): row for row in delta["grid_rows"]}
    more = {name: delta[f"grid_{name}"] for name in ("columns", "total", "order") if f"grid_{name}" in delta}
    found["grid"] = {**document["grid"], **more, "rows": list(rows.values())}
    return found
