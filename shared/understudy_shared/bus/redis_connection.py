"""The parts of Redis access without network I/O: the URL as connection options, the files for TLS, failures as
BusError, and the decision to leave a server that refuses calls.

redis-py makes the connections. A certificate is verified unless the URL says `ssl_cert_reqs=none`.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio.connection import RedisSSLContext
from redis.asyncio.sentinel import MasterNotFoundError as NotFoundByTaskError
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import is_ambiguous, masked, repeats, words_of
from understudy_shared.bus.base import BusError, BusRefusedError
from understudy_shared.bus.redis_scripts import commands_at

_OF_TLS = "ssl_"
_FILES = {"ssl_ca_certs": "CA file", "ssl_certfile": "client certificate", "ssl_keyfile": "key"}


def refuse_bad_files(options: Mapping[str, Any]) -> None:
    """Raise SettingsError if a file for TLS cannot be used: which one, why, and what to do.

    `options` are the options of a connection. Raises ValueError for a wrong value, TypeError for an unknown option.
    """
    found = {name.removeprefix(_OF_TLS): value for name, value in options.items() if name.startswith(_OF_TLS)}
    if not found:
        return
    files = {what: options[name] for name, what in _FILES.items() if options.get(name)}
    for what, path in files.items():
        try:
            with open(path, "rb"):  # noqa: PTH123  # a path as redis-py takes it
                pass
        except OSError as error:
            fix = "Check the path, and that this user may read the file"
            raise SettingsError(f"the {what} for Redis cannot be read: {error.strerror}", where=path, fix=fix) from None
    if "key" in files and "client certificate" not in files:
        raise ValueError("ssl_keyfile is given without ssl_certfile")
    try:
        context = RedisSSLContext(**found)
    except RedisError:
        raise ValueError("ssl_cert_reqs must be `none`, `optional` or `required`") from None
    try:
        context.get()
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"the files for TLS to Redis cannot be used: {error}",
            where=", ".join(files.values()) or "its options",
            fix="Give files in PEM format; the key must match the certificate",
        ) from None


Trouble = tuple[str, str]
"""The reason why a connection by TLS failed, and what to do."""

_UNTRUSTED = (
    "no authority that this process trusts has signed its certificate",
    "Give the certificate of its authority: --redis-ca-file, or ssl_ca_certs in the URL",
)
_OTHER_NAME = "In the URL, name it as its certificate does; else issue one with that name as subjectAltName"
_VERIFIED: Mapping[int, Trouble] = {
    9: ("its certificate is not valid yet", "Check the clocks of both hosts"),
    10: ("its certificate has expired", "Renew the certificate of the Redis"),
    18: _UNTRUSTED,
    19: _UNTRUSTED,
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    62: ("its certificate is of another host name", _OTHER_NAME),
    64: ("its certificate is of another address", _OTHER_NAME),
}
"""Troubles by OpenSSL's numbers (X509_V_ERR_...)."""

_ASKS_FOR_ONE = (
    "it asks for a client certificate",
    "Give one: --redis-cert-file and --redis-key-file, or ssl_certfile and ssl_keyfile in the URL",
)
_REFUSES_OURS = (
    "it refuses the client certificate of this process",
    "Give one that an authority of the Redis has signed",
)
_SPEAKS_NONE = ("it does not speak TLS at this port", "Write redis://, or name the port for TLS")
_BY_REASON = (
    ("CERTIFICATE_REQUIRED", _ASKS_FOR_ONE),
    ("ALERT_HANDSHAKE_FAILURE", _ASKS_FOR_ONE),
    ("ALERT_UNKNOWN_CA", _REFUSES_OURS),
    ("ALERT_BAD_CERTIFICATE", _REFUSES_OURS),
    ("ALERT_CERTIFICATE", _REFUSES_OURS),
    ("WRONG_VERSION_NUMBER", _SPEAKS_NONE),
    ("RECORD_LAYER_FAILURE", _SPEAKS_NONE),
    ("PACKET_LENGTH_TOO_LONG", _SPEAKS_NONE),
)
"""Troubles by parts of OpenSSL's reasons. The first match wins."""


def tls_trouble(error: BaseException) -> Trouble | None:
    """Find the TLS cause of an error of redis-py; None if TLS had no part in it (pure)."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    if found is None:
        return None
    code = getattr(found, "verify_code", 0)
    if code in _VERIFIED:
        return _VERIFIED[code]
    reason = str(getattr(found, "reason", None) or "")
    for part, trouble in _BY_REASON:
        if part in reason:
            return trouble
    said = getattr(found, "verify_message", None) or reason or type(found).__name__
    return (f"the TLS handshake failed: {said}", "Look at the log of the Redis, and at both certificates")


SENTINEL_PORT = 26379
_SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_CLUSTER_SCHEMES = frozenset(("redis+cluster", "rediss+cluster"))
_OF_SENTINELS = "sentinel_"

OTHER_SHAPE = (TypeError, ValueError, LookupError, AttributeError)
"""Exceptions that redis-py and its callers raise if a reply has an unexpected shape."""

FAILURES = (RedisError, OSError, *OTHER_SHAPE)
"""Exceptions that a call to Redis may raise."""

T = TypeVar("T")
_HUNG_UP = ("closed by server", "reset by peer")
"""Parts of redis-py's messages about a peer that closes the connection. A port for TLS does so when it gets plain text.
"""

_SPEAKS_FIRST = "Connection not ready"
"""Part of redis-py's message about a server that sends something before it is asked."""

_KEY = re.compile(r"(us:\{[^}]*\}:)([a-z]+)(:?)")
_DENIED_COMMAND = re.compile(r"run the '([\w|-]+)'")
_IN_SCRIPT = ("ACL failure in script", "user executing the script can't")
"""Parts of Redis' messages when a script lacks a right. Their code differs from the one outside of scripts. 6.2 and 7.0
have the second form, which names the line of the script and no command.
"""

_SERVICE = re.compile(r"'[^']*'")
_OF_A_SENTINEL = re.compile(r" - (?:\w+:)?(\w+)")
"""The kind of each sentinel's failure in redis-py's error text; the rest of the text helps no reader."""

_OF_REPLICAS = (ReadOnlyError, MasterDownError)
_OF_OTHERS = re.compile(r"\b(READONLY|MASTERDOWN)\b|\b(LOADING|NOREPLICAS)\b")
"""The codes of a server's refusals in texts of errors: first those of a replica, then transient ones. In 6.2 an error
within a script has its code in the middle.
"""

STAYS_S = 2.0
"""The time after which a transient refusal counts as permanent."""

MIN_LEAVE_S, MAX_LEAVE_S = 0.05, 2.0
"""Shortest and longest pause between two decisions to leave a server that refuses."""

_HOST_AND_PORT = re.compile(r"[A-Za-z0-9.-]{1,253}:[0-9]{1,5}")
_SPLIT_AUTHORITY = re.compile(r"([^/?#]*)(.*)", re.DOTALL)
Parse = Callable[[str], Mapping[str, Any]]
"""redis-py's parser of URLs, from its blocking or its asyncio half."""


class SentinelPlace(NamedTuple):
    """A Redis that is found by Sentinel. The two URLs have no host, only logins, TLS and options."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    server_url: str
    sentinel_url: str


def sentinel_place(url: str) -> SentinelPlace | None:
    """Return the sentinels of a URL and the service to ask them for; None if the URL names the Redis itself.

    `redis+sentinel://user:password@host1:port1,host2:port2/service/db?option=...`, with `rediss+sentinel` for TLS to
    the servers. Login, db and options are for the servers. Options that begin with `sentinel_` are for the sentinels,
    with `sentinel_ssl=true` for TLS to them. Raises SettingsError for an incomplete URL, or one of a Redis Cluster.
    """
    _refuse_ambiguous(url)
    scheme = url.partition("://")[0].lower()
    # Many branches, one after another: each faulty part of the URL has its own error text.
    if scheme in _CLUSTER_SCHEMES:
        raise _bad_url(url, "a Redis Cluster is not supported")
    if scheme not in _SENTINEL_SCHEMES:
        return None
    try:
        # Python 3.14's `urlsplit` refuses several hosts when one is in brackets: it gets the URL without them.
        authority, rest = _SPLIT_AUTHORITY.fullmatch(url.partition("://")[2]).groups()  # type: ignore[union-attr]  # always
        parts = urlsplit(f"//host{rest}")
        login, at, places = authority.rpartition("@")
        sentinels = tuple(_host_and_port(each) for each in places.split(",") if each)
    except ValueError as error:
        raise _bad_url(url, str(error)) from None
    service, _, db = parts.path.strip("/").partition("/")
    if not sentinels:
        raise _bad_url(url, "it names no sentinel")
    if not service:
        raise _bad_url(url, "it does not say which service to ask the sentinels for")
    if db and not (db.isascii() and db.isdecimal()):
        raise _bad_url(url, f"{db!r} is not a database number")
    options = parse_qsl(parts.query, keep_blank_values=True)
    theirs = {name.removeprefix(_OF_SENTINELS): value for name, value in options if name.startswith(_OF_SENTINELS)}
    sentinel_scheme = "rediss" if theirs.pop("ssl", "").lower() in {"1", "true", "yes", "on"} else "redis"
    ours = urlencode([(name, value) for name, value in options if not name.startswith(_OF_SENTINELS)])
    return SentinelPlace(
        sentinels,
        unquote(service),
        server_url=f"{_SENTINEL_SCHEMES[scheme]}://{login}{at}/{db}?{ours}",
        sentinel_url=f"{sentinel_scheme}:///?{urlencode(theirs)}",
    )


def connection_options(url: str, parse: Parse, *, timeout_s: float, **ours: object) -> dict[str, Any]:
    """Return the options of a redis-py connection pool: the options of the URL, then those that the bus relies on.

    Raises SettingsError for a URL that names no Redis.
    """
    _refuse_ambiguous(url)
    if _HOST_AND_PORT.fullmatch(url):  # anything else without a scheme may hold a password, and is not shown
        raise SettingsError("the address of the Redis has no scheme", where=url, fix=f"Write redis://{url}")
    try:
        options_found = dict(parse(url))
    except (ValueError, TypeError) as error:
        raise _bad_url(url, words_of(error, url)) from None
    if url.startswith("unix:") and not options_found.get("path"):
        raise _bad_url(url, "it has no path")
    return {
        **options_found,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "decode_responses": False,
        "driver_info": None,  # no CLIENT SETINFO: an ACL user needs no right to CLIENT, and ACL LOG stays empty
        "health_check_interval": 0,
        "protocol": 2,  # messages then come in order with replies, and the server pushes nothing else
        **ours,
    }


class Refusals:
    """The refusals of a server, and the decision to leave it (pure: no I/O, no clock).

    The address of a Redis may stay the same when its primary changes. Open connections then lead to a replica for ever,
    and new ones to the new primary. A replica is left at once. A server that loads its data, or lacks replicas, is left
    if it keeps refusing. The pauses between further attempts grow.
    """

    def __init__(self) -> None:
        self.left = 0
        """The number of times that the server was left since the last accepted write."""
        self._due_s: float | None = None
        self._opened = 0
        """The number of connections that calls had opened at the first refusal."""

    def refused(self, error: BaseException, now_s: float, chance: float, *, opened: int = 0) -> bool:
        """Record the error of a call. Return whether to leave the server.

        `chance` in [0, 1) spreads the pauses; `opened` is the number of connections that calls have opened so far.
        """
        found = _OF_OTHERS.search(str(error))
        is_replica = isinstance(error, _OF_REPLICAS) or (found is not None and found[1] is not None)
        if not is_replica and found is None and not isinstance(error, BusyLoadingError):
            return False
        if self._due_s is None:
            self._due_s = now_s if is_replica else now_s + STAYS_S
            self._opened = opened
        if now_s < self._due_s:
            return False
        self._due_s = now_s + min(MAX_LEAVE_S, MIN_LEAVE_S * 2 ** min(self.left, 10)) * (0.5 + chance / 2)
        self.left += 1
        return True

    def accepted(self, *, opened: int = 0) -> bool:
        """Record an accepted write. Return whether other connections may still lead to a server that refused.

        They may if the server was left, or if a connection was opened since the first refusal: it may lead to another
        server.
        """
        may_differ = self.left > 0 or (self._due_s is not None and opened > self._opened)
        self.left, self._due_s = 0, None
        return may_differ


def leaves(error: BaseException) -> bool:
    """Whether a call failed because its server does not act as a primary. A thread then closes its connection."""
    return isinstance(error, _OF_REPLICAS) or _OF_OTHERS.search(str(error)) is not None


def checked(url: str, make: Callable[[], T]) -> T:
    """Return the result of `make`, which does no I/O. Raises SettingsError for options that `make` rejects."""
    try:
        return make()
    except (RedisError, TypeError, ValueError) as error:
        raise _bad_url(url, words_of(error, url)) from None


@contextmanager
def closed_transport_as_os_error() -> Iterator[None]:
    """Raise an OSError, as asyncio does, in place of uvloop's RuntimeError for a write to a connection just reset."""
    try:
        yield
    except RuntimeError as error:
        if "the handler is closed" not in str(error):
            raise
        raise ConnectionResetError(str(error)) from error


def bus_error(error: BaseException, *, doing: str, url: str, timeout_ms: int) -> BusError:
    """Return the BusError for a failed call to the Redis of `url`."""
    if isinstance(error.__cause__, RedisError):  # redis-py wraps some errors, such as a refused login on a unix socket
        error = error.__cause__
    where, why = masked(url), words_of(error, url)
    if isinstance(error, (InvalidResponse, *OTHER_SHAPE)) and not isinstance(error, OSError):
        return BusError(
            f"what answers is not a sound Redis server, while {doing}: {type(error).__name__}: {why:.80}",
            where=where,
            fix="Look at what listens there, and at what lies between: `redis-cli -h HOST PING` must say PONG",
        )
    if isinstance(error, (MasterNotFoundError, NotFoundByTaskError)):
        why = _not_found(str(error))
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return BusError(
            f"Redis refused the login while {doing}: {why}", where=where, fix="Check user and password in the URL"
        )
    if isinstance(error, NoPermissionError) or any(text in str(error) for text in _IN_SCRIPT):
        return BusRefusedError(f"Redis refused {doing}: {why}", where=where, fix=_missing_right(str(error), doing))
    trouble = tls_trouble(error)
    if trouble is not None:
        return BusError(f"Redis cannot be reached by TLS while {doing}: {trouble[0]}", where=where, fix=trouble[1])
    if isinstance(error, ResponseError):
        fix = "Check that it is a primary of Redis or Valkey, not a replica or a cluster's node, and has memory left"
        return BusRefusedError(f"Redis refused {doing}: {why}", where=where, fix=fix)
    if isinstance(error, (TimeoutError, RedisTimeoutError)):
        return BusError(
            f"Redis did not answer within {timeout_ms} ms while {doing}",
            where=where,
            fix="Check that it runs, is not overloaded, and that this host may reach it" + _about_tls(url, error),
        )
    if str(error) == _SPEAKS_FIRST:
        return BusError(
            f"Redis turns connections away while {doing}",
            where=where,
            fix="Look whether it is in protected mode (give it a password, or `--protected-mode no` on a network of "
            "its own), or has all the connections that `maxclients` allows: `redis-cli -h HOST PING` shows which",
        )
    return BusError(
        f"Redis cannot be reached while {doing}: {why}",
        where=where,
        fix="Check that it runs there and that this host may reach it" + _about_tls(url, error),
    )


def _not_found(said: str) -> str:
    """Shorten redis-py's message that no sentinel names a primary to the service and the kinds of the failures."""
    service, failures = _SERVICE.search(said), _OF_A_SENTINEL.findall(said)
    rest = f" ({len(failures)} of them failed: {', '.join(sorted(set(failures)))})" if failures else ""
    return f"no sentinel names a living primary of {service[0] if service else 'the service'}{rest}"


def _missing_right(said: str, doing: str) -> str:
    """Return the rule that the ACL user lacks. Redis names a command or a script's line, never a key or channel."""
    found = _KEY.search(doing)
    root, kind, rest = ("us:", "*", "") if found is None else found.groups()
    command = _DENIED_COMMAND.search(said)
    commands = [command[1]] if command is not None else commands_at(said) if "run this command" in said else []
    if commands:
        rule = " ".join(f"+{name}" for name in commands)
    elif "channel" in said:
        rule = f"&{root}events &{root}heartbeats" if found is not None else "&us:*"
    elif "key" in said:
        rule = f"~{root}{kind}{':*' if rest else ''}"
    else:
        return "Compare the user with deploy/redis/users.acl, which has all that each service needs"
    return f"Give this user {rule}; deploy/redis/users.acl has all that each service needs"


def _about_tls(url: str, error: BaseException) -> str:
    """Return what else to check if only one side may use TLS: neither side reports that."""
    is_late = isinstance(error, (TimeoutError, RedisTimeoutError))
    was_hung_up = any(text in str(error) for text in _HUNG_UP)
    if url.lower().startswith("rediss"):
        asks = "; if it asks for a client certificate, give one with --redis-cert-file" if was_hung_up else ""
        return ". Does it speak TLS at this port?" if is_late else asks
    return "; if it speaks TLS at this port, write rediss://" if was_hung_up and not url.startswith("unix") else ""


def _refuse_ambiguous(url: str) -> None:
    if is_ambiguous(url):
        write = "write @ : / ? # in a user or password as %40 %3A %2F %3F %23"
        raise _settings_error(url, f"its host cannot be separated from its login; {write}")


def _bad_url(url: str, why: str) -> SettingsError:
    return _settings_error(url, "it does not parse" if repeats(why, url) else why)


def _settings_error(url: str, why: str) -> SettingsError:
    return SettingsError(
        f"not the URL of a Redis: {why}",
        where=masked(url),
        fix="Give redis://host:port/db, rediss://host:port/db, unix:///path/of/socket or "
        "redis+sentinel://host:port,host:port,host:port/service/db",
    )


def _host_and_port(text: str) -> tuple[str, int]:
    """Parse the address of one sentinel. Raises ValueError."""
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"{text!r} is not host and port of a sentinel")
    return parts.hostname, parts.port or SENTINEL_PORT
