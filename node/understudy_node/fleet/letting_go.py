"""`DELETE /admin/v1/applications/{application}`: an application that announced itself goes, as an operator asks."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Response

from understudy_node.fleet.following import ACTION, Following
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.printable import clipped
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import unknown_application
from understudy_shared.server.app import json_response

log = logging.getLogger(__name__)


def letting_go_routes(following: Following) -> APIRouter:
    """Make the route."""
    routes = APIRouter()

    @routes.delete("/admin/v1/applications/{application}")
    async def remove(application: str) -> Response:
        """Let an application go at all nodes, until it is announced again."""
        await let_go(following, application)
        return json_response({"application": application, "let_go": True}, 202)

    return routes


async def let_go(following: Following, application_id: str) -> None:
    """Let an application go that announced itself, at all nodes. Raises the problem of any other one."""
    place = following.place_of(application_id)
    if place is not None:
        what = f"{clipped(application_id)} did not announce itself: {place} names it"
        raise ProblemError(Problem(ProblemType.LISTED_APPLICATION, what, "path", f"Take it out of {place}"))
    announcements = None if following.announcing is None else following.announcing.announcements
    if announcements is None or application_id not in announcements.queries:
        raise ProblemError(unknown_application(application_id))
    try:
        await announcements.let_go(application_id)
    except UnderstudyError as error:
        what = f"the announcement of {clipped(application_id)} cannot be changed: {error.what}"
        raise ProblemError(Problem(ProblemType.NOT_INITIALISED, what, error.where, error.fix or "Retry")) from None
    log.warning("applications: %s is let go: an operator asked for it", clipped(application_id), extra=ACTION)
