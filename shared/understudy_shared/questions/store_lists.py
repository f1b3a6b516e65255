"""`GET /v1/stores`, the same at nodes and routers: the stores that a principal sees, and their estimated sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from fastapi import Request, Response

from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.permissions import granted_in, shown_stores
from understudy_shared.auth.principals import Action, Authorization, Principal
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.target import parse_query
from understudy_shared.questions.scan.question import ScanQuestion, ScanRequest
from understudy_shared.questions.scan.requests import scan_turn
from understudy_shared.questions.scan.service import Scans
from understudy_shared.reads.bound_parsing import parse_flag
from understudy_shared.server.app import json_response

ESTIMATES_S: Final = 3.0
"""Time limit for the estimates of a list. Stores without an estimate by then have null in it."""

_COUNT: Final = ScanRequest(ScanQuestion("count"), is_estimate=True)


async def listed_stores(
    request: Request, scans: Scans, described: Sequence[dict[str, Any]], not_served: Sequence[Mapping[str, Any]]
) -> Response:
    """Return the list of stores; with `estimate=true` also an estimate of each store's keys. Raises its problem."""
    principal, query = authorization_of(request.scope).principal, request.scope["query_string"]
    shown = shown_stores(principal, described, not_served)
    if b"estimate" in query and parse_flag(parse_query(query), "estimate"):
        stores: list[dict[str, Any]] = shown["stores"]  # type: ignore[assignment]
        found = await _estimates(scans, [store["store"] for store in stores], principal)
        shown["stores"] = [{**store, "estimated_keys": found.get(store["store"])} for store in stores]
    return json_response(shown)


async def _estimates(scans: Scans, names: Sequence[str], principal: Principal) -> Mapping[str, int]:
    """Estimate the keys of each store that the principal may scan as a whole. All estimates count as one scan."""
    found: dict[str, int] = {}
    with scans.long_reads.begun(), suppress(TimeoutError):
        async with asyncio.timeout(ESTIMATES_S):
            for name in names:
                granted = granted_in(principal, name, Action.SCAN)
                if isinstance(granted, Authorization) and granted.keys.prefixes is None:
                    with suppress(UnderstudyError):  # no estimate of this kind of store, or it cannot be read now
                        store, bound = scans.store(name), scans.service.bound_of(name, {})
                        found[name] = await scans.estimate(scan_turn(store, _COUNT, bound, granted))
    return found
