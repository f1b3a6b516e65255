"""TLS to a Redis: files that cannot be used are refused at the start, and failed handshakes get errors that help.

redis-py makes the connections. A certificate is verified unless the URL says `ssl_cert_reqs=none`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from redis.asyncio.connection import RedisSSLContext
from redis.exceptions import RedisError

from understudy_shared.base.errors import SettingsError

_OF_TLS = "ssl_"
_FILES = {"ssl_ca_certs": "CA file", "ssl_certfile": "client certificate", "ssl_keyfile": "key"}


def refuse_bad_files(options: Mapping[str, Any]) -> None:
    """Raise SettingsError for files of TLS that cannot be used: which one, why, and what to do.

    `options` are those of a connection. Raises ValueError for a wrong value, TypeError for an unknown option.
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
