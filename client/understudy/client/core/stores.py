"""The lists of stores, and the lag (pure): requests, and what comes of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from understudy.client.core.call import call, require
from understudy.client.core.exchange import Request, Steps
from understudy.client.core.reader import Reader, StoreReader
from understudy.client.core.values import query_of
from understudy.client.results import StoreInfo, Stores


def stores(reader: Reader, deadline_s: float, *, estimate: bool) -> Steps[Stores]:
    """List the stores that can be asked."""
    answer = yield from call(
        reader.state, Request("GET", f"/v1/stores{'?estimate=true' if estimate else ''}"), deadline_s
    )
    found = answer.get("stores")
    require(isinstance(found, list) and all(_is_store(each) for each in found), "it does not list stores")
    return Stores(answer)


def info(store: StoreReader, deadline_s: float) -> Steps[StoreInfo]:
    """Describe one store."""
    answer = yield from store.read(Request("GET", store.path), None, deadline_s)
    require(_is_store(answer), "it describes no store")
    return StoreInfo(answer)


def lag(reader: Reader, store: str | None, deadline_s: float) -> Steps[Mapping[str, Any]]:
    """Report the lag of each replica, as the server's JSON."""
    query = query_of({} if store is None else {"store": store})
    answer = yield from call(reader.state, Request("GET", f"/admin/v1/lag{query}"), deadline_s)
    require("stores" in answer, "it does not report lag")
    report: Mapping[str, Any] = answer
    return report


def _is_store(each: object) -> bool:
    return isinstance(each, dict) and {"store", "kind", "key", "value"} <= each.keys()
