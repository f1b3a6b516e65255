"""Lists that come in pages, followed to their end or to a limit, and the columns of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import orjson

from understudy.calls.http_client import RemoteServer, path_segment
from understudy.typed.columns import StoreEntry, read_entry
from understudy_shared.questions.scan.question import MAX_SCAN_ROWS


class Listed(NamedTuple):
    """A page: as the server wrote it, parsed, and its items."""

    body: bytes
    page: dict[str, Any]
    items: list[dict[str, Any]]


def pages(
    ask: Callable[[dict[str, Any]], bytes],
    asked: dict[str, Any],
    items: str,
    limit: int | None,
    place: tuple[str, str] = ("cursor", "next_cursor"),
) -> Iterator[Listed]:
    """Yield the pages of a list. `ask` sends a request; `items` names a page's list. `place`: the names of the cursor
    in a request and in the page before.
    """
    left, asked = limit, dict(asked)
    while True:
        asked["limit"] = MAX_SCAN_ROWS if left is None else min(left, MAX_SCAN_ROWS)
        body = ask(asked)
        page = orjson.loads(body)
        found = page[items] if left is None else page[items][:left]
        yield Listed(body, page, found)
        left = None if left is None else left - len(found)
        if page[place[1]] is None or left == 0:
            return
        asked[place[0]] = page[place[1]]


def entry_of(server: RemoteServer, store: str) -> StoreEntry:
    """Ask for the columns of a store."""
    return read_entry(orjson.loads(server.get(f"/v1/stores/{path_segment(store)}")))
