"""The application that a request is for (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from understudy_shared.auth.permissions import hidden_store
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.texts import clipped
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import (
    STORES,
    application_name,
    application_target,
    named_store,
    split_path,
    unknown_application,
)

MAX_ID_CHARS = 256

FLEET = "fleet"
"""The name for which the processes of a fleet derive their common keys from the cluster's secret."""

MAX_NAMED = 10
"""Applications that a problem names."""

INTERNAL = b"/internal/"
DRAIN = b"/admin/v1/drain"
_OF_STORES = (STORES, b"/v1/stores", b"/v1/read", b"/v1/snapshots")
"""Beginnings of paths below which one application answers, although the path has no name of one."""


class HasStores(Protocol):
    """An application, as far as the choice looks at it."""

    def has_store(self, store: str) -> bool:
        """Whether a store has that name."""


class Chosen(NamedTuple):
    """The application of a request, by its id, and the target of the request in it."""

    application_id: str
    target: bytes


def require_id(application_id: str) -> str:
    """Return an id that can be a segment of a path and a folder, and is not that of a fleet. Raises SettingsError."""
    if application_id == FLEET:
        raise SettingsError(
            f"{clipped(FLEET)} cannot be the id of an application: the processes of a fleet have that name",
            where="id",
            fix="Give it another: its keys and certificates would be those of the whole fleet",
        )
    is_usable = 0 < len(application_id) <= MAX_ID_CHARS and application_id.isprintable()
    if not is_usable or "/" in application_id or application_id in {".", ".."}:
        raise SettingsError(
            f"{clipped(application_id)} cannot be the id of an application",
            where="id",
            fix=f"Give it 1 to {MAX_ID_CHARS} printable characters without a slash, such as orders-by-region",
        )
    return application_id


def everything(_application: str, _store: str) -> bool:
    """See every store of every application."""
    return True


def chosen(
    target: bytes,
    applications: Mapping[str, HasStores],
    is_ready: Callable[[str], bool],
    sees: Callable[[str, str], bool] = everything,
    *,
    are_all: bool = True,
) -> Chosen | None:
    """Choose the application of a request for `target`, a path with or without its query; None: the fleet answers.

    `applications` are those that the reader sees; `sees` says whether he sees a store of one. Others change nothing in
    the choice or in a problem. `are_all`: whether these are all: a single one then answers requests
    that name no application. Raises a problem: unknown-application, unknown-store, ambiguous-store, or
    not-initialised.
    """
    named, inner = application_target(target)
    if named is not None:
        name = application_name(named)
        if name not in applications:
            raise ProblemError(unknown_application(name))
        return Chosen(name, inner)
    path = target.partition(b"?")[0]
    if are_all and len(applications) == 1 and path.startswith(_OF_STORES):
        return Chosen(next(iter(applications)), target)
    if not path.startswith(STORES):
        return None
    _, _, store, *call = split_path(path)
    store = store if call else named_store(store)[0]
    seen = {each: application for each, application in applications.items() if sees(each, store)}
    if not seen:
        raise ProblemError(hidden_store(store))
    return Chosen(_only_one_with(store, seen, is_ready), target)


def _only_one_with(store: str, applications: Mapping[str, HasStores], is_ready: Callable[[str], bool]) -> str:
    having = [each for each, application in applications.items() if application.has_store(store)]
    if len(having) == 1:
        return having[0]
    if having:
        detail = f"{clipped(store)} is a store of {_named(having)}"
        fix = "Name the application: /v1/applications/{application}/stores/{store}"
        extra: dict[str, object] = {"applications": sorted(having)[:MAX_NAMED]}
        raise ProblemError(Problem(ProblemType.AMBIGUOUS_STORE, detail, "path", fix, extra))
    waiting = [each for each in applications if not is_ready(each)]
    if waiting:
        detail = f"no application has a store {clipped(store)} yet, and {_named(waiting)} did not say which they have"
        raise ProblemError(Problem(ProblemType.NOT_INITIALISED, detail, "path", "Retry, or name the application"))
    fix = "GET /v1/stores lists the stores of all applications"
    raise ProblemError(Problem(ProblemType.UNKNOWN_STORE, f"there is no store {clipped(store)}", "path", fix))


def judged(problem: Problem, unknown_why: str | None) -> Problem:
    """Return a problem as it is, or that it is not known yet: what a fleet does not know may be there all the same."""
    if unknown_why is None or problem.type not in {ProblemType.UNKNOWN_APPLICATION, ProblemType.UNKNOWN_STORE}:
        return problem
    return not_known(unknown_why)


def not_known(why: str) -> Problem:
    """Return the problem of a fleet that does not know its applications."""
    return Problem(ProblemType.NOT_INITIALISED, why, "path", "Retry when /readyz says so")


def application_of(named: bytes | None, applications: Collection[str]) -> str:
    """Return the application that an internal call names; without a name the only one, as for a reader.

    Raises an unknown-application problem.
    """
    if named is None and len(applications) == 1:
        return next(iter(applications))
    name = "" if named is None else application_name(named)
    if name not in applications:
        raise ProblemError(unknown_application(name))
    return name


def _named(applications: Collection[str]) -> str:
    shown = ", ".join(clipped(each) for each in sorted(applications)[:MAX_NAMED])
    return shown + (f" and {len(applications) - MAX_NAMED} more" if len(applications) > MAX_NAMED else "")
