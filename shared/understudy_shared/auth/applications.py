"""The application of a request, which is known before it is decided what the request is granted (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from understudy_shared.auth.principals import Principal
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.http.target import (
    APPLICATIONS,
    STORES,
    application_name,
    application_target,
    unknown_application,
)

Choose = Callable[[bytes, Principal], str | None]
"""A function that returns the application of a path for a principal; None where no single one answers.

It raises the problem of a request whose application is unknown, or not one. Of applications and stores that the
principal does not see it says the same as of those that do not exist.
"""

_NAME_AT = len(APPLICATIONS)
_STORES_BELOW = STORES.removeprefix(b"/v1")
_ENCODED = frozenset("%?#")


class StoreTarget(NamedTuple):
    """A target below a store: its application, and where the name of the store begins."""

    application: str
    store_at: int


class ServedApplications:
    """The applications of a service, as the access check looks at them."""

    def __init__(self) -> None:
        self.own = ""
        """The application of a service of one. Grants that are limited to applications hold nowhere until it is set."""
        self.choose: Choose | None = None
        """The choice of a service of many."""

    def of(self, raw_path: bytes, principal: Principal) -> str | Problem | None:
        """Return the application of a request; None where no single one answers, or the problem that it is unknown."""
        try:
            if self.choose is not None:
                return self.choose(raw_path, principal)
            named = application_target(raw_path)[0]
            name = self.own if named is None else application_name(named)
        except UnderstudyError as error:
            return problem_of(error)
        is_here = named is None or (name == self.own and principal.sees_application(name))
        return name if is_here else unknown_application(name)

    def of_store(self, target: bytes, *, is_needed: bool) -> StoreTarget | None:
        """Return what a target of a store says as it stands; None where it has to be decoded or chosen first.

        `is_needed`: what is granted depends on the application.
        """
        if target.startswith(STORES):
            is_known = self.choose is None and bool(self.own)
            if is_needed and not is_known:
                return None
            return StoreTarget("" if self.choose is not None else self.own, len(STORES))
        if not target.startswith(APPLICATIONS):
            return None
        end = target.find(b"/", _NAME_AT)
        name = target[_NAME_AT:end].decode("latin-1")
        is_plain = name.isascii() and name.isprintable() and _ENCODED.isdisjoint(name)
        is_here = self.choose is not None or name == self.own
        if end <= _NAME_AT or not (is_plain and is_here) or not target.startswith(_STORES_BELOW, end):
            return None
        return StoreTarget(name, end + len(_STORES_BELOW))

    def of_probes(self, principal: Principal) -> Principal:
        """Return a principal as probes see it, which are of the whole service."""
        return principal if self.choose is not None else principal.within(self.own)
