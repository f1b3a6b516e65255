"""Interactive queries for Spark Structured Streaming: the client of nodes and routers, and the command line.

    from understudy import Client

Names are imported when they are used, so that the command line does not pay for the client, nor a program that blocks
for asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.client.aio import AsyncClient as AsyncClient
    from understudy.client.errors import AmbiguousKeyError as AmbiguousKeyError
    from understudy.client.errors import AmbiguousStoreError as AmbiguousStoreError
    from understudy.client.errors import BadReplyError as BadReplyError
    from understudy.client.errors import BadRequestError as BadRequestError
    from understudy.client.errors import DeadlineError as DeadlineError
    from understudy.client.errors import ForbiddenError as ForbiddenError
    from understudy.client.errors import LineageChangedError as LineageChangedError
    from understudy.client.errors import OverloadedError as OverloadedError
    from understudy.client.errors import ServerProblemError as ServerProblemError
    from understudy.client.errors import UnauthenticatedError as UnauthenticatedError
    from understudy.client.errors import UnavailableError as UnavailableError
    from understudy.client.errors import UnknownApplicationError as UnknownApplicationError
    from understudy.client.errors import UnknownStoreError as UnknownStoreError
    from understudy.client.errors import UnreachableError as UnreachableError
    from understudy.client.errors import UsageError as UsageError
    from understudy.client.errors import VersionGoneError as VersionGoneError
    from understudy.client.errors import WrongKeyError as WrongKeyError
    from understudy.client.results import Result as Result
    from understudy.client.results import WatchEvent as WatchEvent
    from understudy.client.sync import Client as Client
    from understudy_shared.base.errors import UnderstudyError as UnderstudyError

_HOMES = {
    "AsyncClient": "understudy.client.aio",
    "Client": "understudy.client.sync",
    "Result": "understudy.client.results",
    "UnderstudyError": "understudy_shared.base.errors",
    "WatchEvent": "understudy.client.results",
    **dict.fromkeys(
        (
            *("AmbiguousKeyError", "AmbiguousStoreError", "UnknownApplicationError"),
            *("BadReplyError", "BadRequestError", "DeadlineError", "ForbiddenError", "LineageChangedError"),
            *("OverloadedError", "ServerProblemError", "UnauthenticatedError", "UnavailableError"),
            *("UnknownStoreError", "UnreachableError", "UsageError", "VersionGoneError", "WrongKeyError"),
        ),
        "understudy.client.errors",
    ),
}

__all__ = [*_HOMES]  # noqa: PLE0604  # all are texts


def __getattr__(name: str) -> object:
    """Import a name of the client when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
