"""Where a Redis is, how connections to it are made, and what their failures mean to a reader (pure: no I/O)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from understudy_shared.bus.base import BusError
from understudy_shared.errors import SettingsError

_SECRET = frozenset(("password", "ssl_password"))


def connection_options(
    url: str, parse: Callable[[str], Mapping[str, Any]], *, timeout_s: float, **ours: object
) -> dict[str, Any]:
    """What a connection pool of redis-py is made with: what the URL says, and above it what the bus relies on.

    `parse` is redis-py's reader of URLs. Raises SettingsError for a URL that names no Redis.
    """
    try:
        told = dict(parse(url))
    except (ValueError, TypeError) as error:
        raise _bad_url(url, str(error)) from None
    if url.startswith("unix:") and not told.get("path"):
        raise _bad_url(url, "it has no path")
    return {
        **told,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "decode_responses": False,
        "health_check_interval": 0,
        "protocol": 2,  # messages then come in order with replies, and no server pushes anything else
        **ours,
    }


def checked(url: str, make: Callable[[], object]) -> None:
    """Raise SettingsError when a connection cannot even be made of a URL's options; `make` does no I/O."""
    try:
        make()
    except (TypeError, ValueError) as error:
        raise _bad_url(url, str(error)) from None


def masked(url: str) -> str:
    """The URL without its passwords, for people to read."""
    try:
        parts = urlsplit(url)
        secret = parts.password is not None
    except ValueError:
        return "(a URL that does not parse)"
    place = parts.netloc
    if secret:
        login, _, host = place.rpartition("@")
        place = f"{login.partition(':')[0]}:***@{host}"
    query = parts.query
    told = parse_qsl(query, keep_blank_values=True)
    if any(name in _SECRET for name, _ in told):
        query = urlencode([(name, "***" if name in _SECRET else value) for name, value in told], safe="*/")
    return f"{parts.scheme}://{place}{parts.path}{'?' + query if query else ''}"


def bus_error(error: BaseException, *, doing: str, where: str, timeout_ms: int) -> BusError:
    """What a failed call means; `where` is the masked URL."""
    if isinstance(error.__cause__, RedisError):  # redis-py wraps a refused login on a unix socket, for one
        error = error.__cause__
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return BusError(
            f"Redis refused the login while {doing}: {error}", where=where, fix="Check user and password in the URL"
        )
    if isinstance(error, NoPermissionError):
        fix = "Give the user scripts, SCAN and publishing on the keys and channels us:*"
        return BusError(f"Redis refused {doing}: {error}", where=where, fix=fix)
    if isinstance(error, ResponseError):
        fix = "Check that it is a primary of Redis or Valkey, not a replica or a cluster's node, and has memory left"
        return BusError(f"Redis refused {doing}: {error}", where=where, fix=fix)
    if isinstance(error, (TimeoutError, RedisTimeoutError)):
        return BusError(
            f"Redis did not answer within {timeout_ms} ms while {doing}",
            where=where,
            fix="Check that it runs, is not overloaded, and that this host may reach it",
        )
    return BusError(
        f"Redis cannot be reached while {doing}: {error}",
        where=where,
        fix="Check that it runs there and that this host may reach it",
    )


def _bad_url(url: str, why: str) -> SettingsError:
    return SettingsError(
        f"not the URL of a Redis: {why}",
        where=masked(url),
        fix="Give redis://host:port/db, rediss://host:port/db or unix:///path/of/socket",
    )
