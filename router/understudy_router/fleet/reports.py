"""Reports over all applications of a router: how each is, the worst first, and what a stop of a node would cost all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from understudy_router.admin.admin import unknown_node
from understudy_router.fleet.held import HeldApplication
from understudy_shared.auth.access import authorization_of
from understudy_shared.auth.audit import note
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import clipped
from understudy_shared.cluster.node_calls import NodeCallError
from understudy_shared.fleet.dispatching import not_known
from understudy_shared.http.edge import read_flag
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import unknown_application
from understudy_shared.page.routes import fleet_page_routes
from understudy_shared.page.series import STEP_MS
from understudy_shared.server.app import json_response
from understudy_shared.spark.temporal import utc_text

Document = Mapping[str, Any]

FRESH_MS = 1000
"""Longest age of a list of rows that several viewers get."""

_WORST_FIRST = ("hurt", "unknown", "attention", "ok")


MAX_ASKED = 3
"""Nodes that are asked, one after the other, until one answers."""

_OF_A_NODE = (ProblemType.LISTED_APPLICATION, ProblemType.UNKNOWN_APPLICATION, ProblemType.NOT_INITIALISED)
"""Problems of a node that are passed on as they are."""


async def let_go(application_id: str, held: HeldApplication) -> dict[str, object]:
    """Return what a node says to it. Raises ProblemError when it refuses, and when no node answers."""
    why = "none is heard"
    for node_id, node in sorted(held.router.tables.nodes.items())[:MAX_ASKED]:
        try:
            status, document = await held.router.nodes.let_go(node.heartbeat.endpoint.host_info())
        except NodeCallError as error:
            why = str(error)
            continue
        if status < 400:
            return document
        raise ProblemError(_refusal(node_id, status, document))
    what = f"no node of {clipped(application_id)} answers: {why}"
    raise ProblemError(Problem(ProblemType.NODE_UNREACHABLE, what, "path", "Retry, or ask a node of the fleet"))


def _refusal(node_id: str, status: int, document: dict[str, object]) -> Problem:
    detail, fix = (f"{document.get(name, '')!s:.500}" for name in ("detail", "fix"))
    for kind in _OF_A_NODE:
        if (kind.slug, kind.status) == (document.get("type"), status):
            return Problem(kind, f"node {clipped(node_id)}: {detail}", "path", fix)
    what = f"the node refuses with {status}: {detail or 'no reason'}"
    return Problem(ProblemType.BAD_REPLY, what, node_id, "Look at that node and its log")


class FleetReports:
    """The reports of the applications in `held`, which changes while the process runs."""

    def __init__(
        self, held: Mapping[str, HeldApplication], clock: Clock, unknown_why: Callable[[], str | None] = lambda: None
    ) -> None:
        """Set the parts. `unknown_why` returns why not all applications are known here; None once they are."""
        self._held = held
        self._unknown_why = unknown_why
        self._clock = clock
        self._rows: Sequence[Document] = ()
        self._made_ms = float("-inf")
        self._making = asyncio.Lock()

    async def overview(self, sees: Callable[[str], bool]) -> dict[str, Any]:
        """Return a row for each application that the caller sees, the worst first."""
        async with self._making:
            if self._clock.monotonic_ms() - self._made_ms > FRESH_MS:
                self._rows = sorted([await _row(each) for each in self._held.values()], key=_badness)
                self._made_ms = self._clock.monotonic_ms()
            rows = self._rows
        found = [row for row in rows if sees(row["application"])]
        return {"schema": 1, "generated_at": utc_text(self._clock.wall_us()), "applications": found}

    async def safe_to_stop(self, node_id: str, sees: Callable[[str], bool]) -> dict[str, Any]:
        """Return whether a node may be stopped as far as all its applications go. Raises ProblemError for a node that
        none of them knows. An application whose nodes are not known yet may have replicas there: it is not safe.
        """
        knowing = self._knowing(node_id, sees)
        documents = await asyncio.gather(*[held.app.admin.safe_to_stop(node_id) for held in knowing.values()])
        each = dict(zip(knowing, documents, strict=True))
        for name, held in self._held.items():
            if sees(name) and name not in each and held.may_hold_unseen:
                each[name] = held.app.admin.unknown_safety(node_id)
        unsafe = {name: document for name, document in each.items() if not document["safe"]}
        why = [f"{clipped(name)}: {document['why']}" for name, document in (unsafe or each).items()]
        verdicts = [document["safe"] for document in each.values()]
        return {
            "node_id": node_id,
            "safe": False if False in verdicts else None if None in verdicts else True,
            "why": "; ".join(why),
            "applications": each,
            "checked_at": utc_text(self._clock.wall_us()),
        }

    async def drain(self, node_id: str, sees: Callable[[str], bool], *, drain: bool) -> dict[str, Any]:
        """Drain a node in all its applications. Raises ProblemError when one of them refuses: the others drain."""
        knowing = self._knowing(node_id, sees)
        asking = [_drained(held, node_id, drain=drain) for held in knowing.values()]
        each = dict(zip(knowing, await asyncio.gather(*asking), strict=True))
        failed = {name: found for name, found in each.items() if isinstance(found, Problem)}
        if failed:
            what = "; ".join(f"{clipped(name)}: {problem.detail}" for name, problem in failed.items())
            fix = f"Repeat it: {len(each) - len(failed)} of {len(each)} applications took it"
            first = next(iter(failed.values()))
            raise ProblemError(Problem(first.type, what, node_id, fix, {"applications": sorted(failed)}))
        return {"node_id": node_id, "drain": drain, "applications": each}

    async def let_go(self, application_id: str) -> dict[str, object]:
        """Let an application go that announced itself. Raises ProblemError."""
        held = self._held.get(application_id)
        if held is None:
            raise ProblemError(unknown_application(application_id))
        return await let_go(application_id, held)

    def _knowing(self, node_id: str, sees: Callable[[str], bool]) -> dict[str, HeldApplication]:
        """Return the applications that know a node."""
        seen = {name: held for name, held in self._held.items() if sees(name)}
        found = {name: held for name, held in seen.items() if node_id in held.router.tables.known_nodes}
        if not found:
            if (why := self._unknown_why()) is not None:
                raise ProblemError(not_known(why))
            known = frozenset[str]().union(*[held.router.tables.known_nodes for held in seen.values()])
            raise ProblemError(unknown_node(node_id, known))
        return found


def fleet_routes(reports: FleetReports) -> APIRouter:
    """Make the routes. Those of one application are below `/admin/v1/applications/{application}/`."""
    routes = APIRouter()

    @routes.get("/admin/v1/applications")
    async def applications(request: Request) -> Response:
        """Return every application that the caller may monitor: health, freshness, lag and reads, the worst first."""
        return json_response(await reports.overview(monitored_by(request)))

    @routes.delete("/admin/v1/applications/{application}")
    async def remove(application: str) -> Response:
        """Let an application go that announced itself, at all nodes, until it is announced again."""
        return json_response(await reports.let_go(application), 202)

    @routes.get("/admin/v1/nodes/{node_id}/safe-to-stop")
    async def safe_to_stop(node_id: str, request: Request) -> Response:
        """Whether a node may be stopped now, as far as all its applications go."""
        return json_response(await reports.safe_to_stop(node_id, monitored_by(request)))

    @routes.post("/admin/v1/nodes/{node_id}/drain")
    async def drain(node_id: str, request: Request) -> Response:
        """Ask the cluster to move a node's tasks of all applications to others; `{"drain": false}` takes that back."""
        wanted = await read_flag(request.receive, "drain", default=True)
        note(request.scope, drain=wanted)
        return json_response(await reports.drain(node_id, monitored_by(request), drain=wanted), 202)

    routes.include_router(fleet_page_routes(lambda request: reports.overview(monitored_by(request))))
    return routes


def monitored_by(request: Request) -> Callable[[str], bool]:
    """Return which applications the caller of a request may monitor."""
    return authorization_of(request.scope).principal.monitors


async def _drained(held: HeldApplication, node_id: str, *, drain: bool) -> object:
    try:
        return await held.router.drain(node_id, drain=drain)
    except UnderstudyError as error:
        return problem_of(error)


async def _row(held: HeldApplication) -> Document:
    """Return the row of one application. Its figures are at most as old as a point of its history."""
    seen = await held.app.admin.observed(max_age_ms=STEP_MS)
    report, figures = held.report(), held.app.admin.figures(seen)
    return {
        "application": report.application_id,
        "state": report.state,
        "reason": report.reason,
        **figures,
        "stores": list(report.stores),
    }


def _badness(row: Document) -> tuple[int, bool, int, str]:
    state, lag = row["health"]["state"], row["lag"]["worst_batches"]
    rank = _WORST_FIRST.index(state) if state in _WORST_FIRST else 0
    return rank, lag is not None, -(lag or 0), row["application"]
