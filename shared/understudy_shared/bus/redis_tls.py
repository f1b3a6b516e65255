"""TLS to a Redis: the authorities that its connections trust, and the errors of failed handshakes.

A certificate is verified unless the URL says `ssl_cert_reqs=none`. When a CA file is given, only that file is trusted;
redis-py would trust the system's authorities as well. A context is made once and again when its files change, so a
renewed certificate needs no restart: making one for each connection would stop the loop for milliseconds.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, NamedTuple

from redis import asyncio as aio
from redis import sentinel as threads
from redis.asyncio import sentinel as tasks
from redis.connection import SSLConnection

from understudy_shared.base.errors import SettingsError

_OF_TLS = "ssl_"
_MODES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

Stamp = tuple[int, int, int]
"""The inode, size and time of a file, which change when it is exchanged."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The options of a URL that begin with `ssl_`. Unknown ones are refused: users might rely on them."""

    ca_certs: str | None = None
    ca_path: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = field(default=None, repr=False)
    cert_reqs: str = "required"
    check_hostname: bool = True
    min_version: int | None = None
    ciphers: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TlsOptions:
        """Read them from the options of a connection. Raises ValueError for an unknown one, or a wrong value."""
        found = {name.removeprefix(_OF_TLS): value for name, value in options.items() if name.startswith(_OF_TLS)}
        unknown = sorted(found.keys() - {each.name for each in fields(cls)})
        if unknown:
            raise ValueError(f"there is no option {_OF_TLS}{unknown[0]}")
        made = cls(**found)
        if made.cert_reqs not in _MODES:
            raise ValueError(f"ssl_cert_reqs is none of {', '.join(_MODES)}")
        if made.keyfile is not None and made.certfile is None:
            raise ValueError("ssl_keyfile is given without ssl_certfile")
        return made

    @property
    def files(self) -> dict[str, str]:
        """The named files, by their purpose."""
        named = {"CA file": self.ca_certs, "client certificate": self.certfile, "key": self.keyfile}
        return {what: path for what, path in named.items() if path is not None}


def context_of(options: TlsOptions) -> ssl.SSLContext:
    """Return the context for these options; read files that are new or changed. Raises OSError (SSLError is one)."""
    return _context(options, tuple(_stamp(path) for path in options.files.values()))


@lru_cache(maxsize=8)
def _context(options: TlsOptions, _: tuple[Stamp, ...]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.ca_certs, capath=options.ca_path)
    mode = _MODES[options.cert_reqs]
    context.check_hostname = options.check_hostname and mode is not ssl.CERT_NONE
    context.verify_mode = mode
    if options.certfile is not None:
        context.load_cert_chain(options.certfile, options.keyfile, options.password)
    if options.min_version is not None:
        context.minimum_version = ssl.TLSVersion(options.min_version)
    if options.ciphers is not None:
        context.set_ciphers(options.ciphers)
    return context


def _stamp(path: str) -> Stamp:
    found = os.stat(path)  # noqa: PTH116  # it follows links, as Kubernetes makes for secrets
    return found.st_ino, found.st_size, found.st_mtime_ns


class _TlsOfTasks:
    """A mixin that gives redis-py's connection for tasks our context. No I/O before it connects."""

    def __init__(self, **options: Any) -> None:
        self._tls = TlsOptions.of(options)
        super().__init__(**options)

    def _connection_arguments(self) -> Mapping[str, Any]:
        self.ssl_context.context = context_of(self._tls)  # type: ignore[attr-defined]
        found: Mapping[str, Any] = super()._connection_arguments()  # type: ignore[misc]
        return found


class _TlsOfThreads:
    """A mixin that gives redis-py's connection for threads our context."""

    def __init__(self, **options: Any) -> None:
        self._tls = TlsOptions.of(options)
        super().__init__(**options)

    def _wrap_socket_with_ssl(self, sock: Any) -> ssl.SSLSocket:
        return context_of(self._tls).wrap_socket(sock, server_hostname=self.host)  # type: ignore[attr-defined]


class RedisTlsConnection(_TlsOfTasks, aio.SSLConnection):
    """A connection of a loop's tasks."""


class SentinelTlsConnection(_TlsOfTasks, tasks.SentinelManagedSSLConnection):
    """The same to a primary that sentinels name."""


class ThreadTlsConnection(_TlsOfThreads, SSLConnection):
    """A connection of a thread."""


class ThreadSentinelTlsConnection(_TlsOfThreads, threads.SentinelManagedSSLConnection):
    """The same to a primary that sentinels name."""


def with_verified_tls(options: Mapping[str, Any], connection_class: type) -> dict[str, Any]:
    """Return the options of a pool, with our class of connections if they ask for TLS by redis-py's.

    Raises SettingsError for files that cannot be used, ValueError for wrong options.
    """
    theirs = options.get("connection_class")
    if theirs is None or not issubclass(theirs, (aio.SSLConnection, SSLConnection)):
        return dict(options)
    refuse_bad_files(TlsOptions.of(options))
    return {**options, "connection_class": connection_class}


def refuse_bad_files(options: TlsOptions) -> None:
    """Raise SettingsError for files of TLS that cannot be used: which one, why, and what to do."""
    for what, path in options.files.items():
        try:
            with open(path, "rb"):  # noqa: PTH123  # a path as redis-py takes it
                pass
        except OSError as error:
            fix = "Check the path, and that this user may read the file"
            raise SettingsError(f"the {what} for Redis cannot be read: {error.strerror}", where=path, fix=fix) from None
    try:
        context_of(options)
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"the files for TLS to Redis cannot be used: {error}",
            where=", ".join(options.files.values()) or "its options",
            fix="Give files in PEM format; the key must be that of the certificate",
        ) from None


class RedisTlsTrouble(NamedTuple):
    """The reason why a connection by TLS failed, and what to do."""

    why: str
    fix: str


_UNTRUSTED = RedisTlsTrouble(
    "no authority that this process trusts has signed its certificate",
    "Give the certificate of its authority: --redis-ca-file, or ssl_ca_certs in the URL",
)
_OTHER_NAME = "In the URL, name it as its certificate does; else issue one with that name as subjectAltName"
_VERIFIED: Mapping[int, RedisTlsTrouble] = {
    9: RedisTlsTrouble("its certificate is not valid yet", "Check the clocks of both hosts"),
    10: RedisTlsTrouble("its certificate has expired", "Renew the certificate of the Redis"),
    18: _UNTRUSTED,
    19: _UNTRUSTED,
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    62: RedisTlsTrouble("its certificate is of another host name", _OTHER_NAME),
    64: RedisTlsTrouble("its certificate is of another address", _OTHER_NAME),
}
"""Troubles by OpenSSL's numbers (X509_V_ERR_...)."""

_ASKS_FOR_ONE = RedisTlsTrouble(
    "it asks for a client certificate",
    "Give one: --redis-cert-file and --redis-key-file, or ssl_certfile and ssl_keyfile in the URL",
)
_REFUSES_OURS = RedisTlsTrouble(
    "it refuses the client certificate of this process", "Give one that an authority of the Redis has signed"
)
_SPEAKS_NONE = RedisTlsTrouble("it does not speak TLS at this port", "Write redis://, or name the port for TLS")
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
"""Troubles by parts of OpenSSL's reasons; the first that fits counts."""


def tls_trouble(error: BaseException) -> RedisTlsTrouble | None:
    """Find the TLS trouble behind an error of redis-py; None when TLS had no part in it (pure)."""
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
    return RedisTlsTrouble(
        f"the TLS handshake failed: {said}", "Look at the log of the Redis, and at both certificates"
    )
