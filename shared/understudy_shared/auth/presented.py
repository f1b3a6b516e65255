"""Credentials as requests carry them: a key, a token (JWT, RFC 7519), or a browser's session (pure).

A key is `usk_{id}_{secret}`: an id that may be shown, and a secret of 256 bits. Services store its SHA-256. A slow hash
would protect secrets that can be guessed. A random one of 256 bits cannot, and a slow hash would cost every request as
much as a thousand lookups.

After a sign-in with a key, a cookie proves that key for some hours. The cookie is signed with a key that is derived
from the cluster's secret, so every router of the application can check it and no router stores it. The cookie names the
user's key: when that is revoked or expires, its sessions end too.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from understudy_shared.auth.principals import Authorization, Principal

ID_BYTES, SECRET_BYTES = 8, 32

KEY_ID = re.compile(r"[0-9a-f]{16}")
KEY = re.compile(r"usk_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_PARTS = (b"id", b"key")


class NewKey(NamedTuple):
    """A key and its stored part. `text` is shown once."""

    key_id: str
    text: str

    @property
    def sha256(self) -> str:
        return digest_of(self.text.encode()).hex()

    def __repr__(self) -> str:
        return f"NewKey({self.key_id})"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as a service knows it."""

    key_id: str
    digest: bytes
    principal: Principal
    expires_s: float = math.inf
    """Unix time from which on the key is refused."""

    def is_expired(self, now_s: float) -> bool:
        return now_s >= self.expires_s


class Granted(NamedTuple):
    """A grant of lookups to a key: of targets that begin with these bytes, all in one application."""

    key: ApiKey
    begins: bytes
    authorization: Authorization
    application: str


class Presented:
    """A credential as a request carries it: not the secret, only its digest. `proven` is the key that it has proven,
    `granted` its last grant.

    Equal headers share one object, so a key is compared once and not for each lookup.
    """

    __slots__ = ("digest", "granted", "key_id", "proven")

    def __init__(self, key_id: str, digest: bytes) -> None:
        self.key_id = key_id
        self.digest = digest
        self.proven: ApiKey | None = None
        self.granted: Granted | None = None

    def proves(self, key: ApiKey) -> bool:
        """Whether this is the key. The comparison takes the same time for a wrong one."""
        if self.proven is not key:
            if not hmac.compare_digest(key.digest, self.digest):
                return False
            self.proven = key
        return True


def new_key() -> NewKey:
    return _key(secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES))


def derived_key(secret: bytes, purpose: str) -> NewKey:
    """Derive the key for a purpose from a secret. The secret cannot be computed from the key."""
    first, second = (hmac.digest(secret, b"understudy %b %b" % (part, purpose.encode()), "sha256") for part in _PARTS)
    return _key(first[:ID_BYTES], second)


def _key(key_id: bytes, secret: bytes) -> NewKey:
    return NewKey(key_id.hex(), f"usk_{key_id.hex()}_{urlsafe_b64encode(secret).rstrip(b'=').decode()}")


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


MAX_TOKEN_BYTES = 8192
"""Limit on a token: half of the limit of all headers. Tokens with a user's hundred groups have 4 KiB."""

_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9_.-]+)")
_KEY = re.compile(KEY.pattern.encode())
_TOKEN = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class PresentedToken(Presented):
    """A token as a request carries it. `bad` is the reason why it is refused for this request."""

    __slots__ = ("bad", "token")

    def __init__(self, token: bytes) -> None:
        digest = digest_of(token)
        super().__init__(f"token {digest.hex()}", digest)
        self.token = token
        self.bad: BadTokenError | None = None


class BadTokenError(Exception):
    """The reason why a token is refused, for the log and the metric. The client gets less detail."""

    def __init__(self, reason: str, *, is_expired: bool = False, lacks_key_of: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_expired = is_expired
        self.lacks_key_of = lacks_key_of
        """The issuer whose known key set lacks the key. A newer set may have it."""


def presented_in(headers: Iterable[tuple[bytes, bytes]]) -> Presented | None:
    """Return the credential of a request, None without one. Names of headers are in lower case.

    A credential of unknown form, or one that is sent twice, is refused like a wrong key.
    """
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        return None
    bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if bearer is None:
        return Presented("", b"")
    shown = bearer[1]
    if found := _KEY.fullmatch(shown):
        return Presented(found[1].decode(), digest_of(shown))
    if len(shown) <= MAX_TOKEN_BYTES and _TOKEN.fullmatch(shown):
        return PresentedToken(shown)
    return Presented("", b"")


COOKIE = "understudy_session"
LIFETIME_S = 12 * 3600
"""Lifetime of a session, a working day: a browser that is left open overnight is signed out."""

_COOKIE = re.compile(rb"(?:^|;) *%b=([^; ]*)" % COOKIE.encode())
_FORM = re.compile(rb"([0-9a-f]{16})\.([0-9]{1,12})\.([A-Za-z0-9_-]{43})")


class Session(Presented):
    """A session as a request carries it."""

    __slots__ = ("ends", "mac")

    def __init__(self, key_id: str, ends: int, mac: bytes) -> None:
        super().__init__(key_id, b"")
        self.ends = ends
        self.mac = mac

    def is_of(self, key: ApiKey, signing_keys: Sequence[bytes], now_s: float) -> bool:
        """Whether it was begun with this key, and has not ended."""
        known = [hmac.compare_digest(_mac(key, self.ends, each), self.mac) for each in signing_keys]
        is_ours = any(known) and key.key_id == self.key_id
        return is_ours and now_s < self.ends and not key.is_expired(now_s)


def new_session(key: ApiKey, signing_key: bytes, now_s: float) -> str:
    """Return the cookie's value for a session that begins now."""
    ends = int(min(now_s + LIFETIME_S, key.expires_s))
    return f"{key.key_id}.{ends}.{_mac(key, ends, signing_key).decode()}"


def session_in(headers: Iterable[tuple[bytes, bytes]]) -> Session | None:
    """Return the session of a request, None without one. If it is malformed, or sent twice, no key accepts it."""
    values = [value for name, cookies in headers if name == b"cookie" for value in _COOKIE.findall(cookies)]
    if not values:
        return None
    found = _FORM.fullmatch(values[0]) if len(values) == 1 else None
    return Session("", 0, b"") if found is None else Session(found[1].decode(), int(found[2]), found[3])


def _mac(key: ApiKey, ends: int, signing_key: bytes) -> bytes:
    """Return the MAC. It is valid for this key only: another key with the same id has another digest."""
    said = b"%b.%d.%b" % (key.key_id.encode(), ends, key.digest)
    return urlsafe_b64encode(hmac.digest(signing_key, said, "sha256")).rstrip(b"=")
