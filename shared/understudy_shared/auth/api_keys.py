"""API keys (pure): `usk_{id}_{secret}`, an id that may be shown and a secret of 256 bits.

Services keep the SHA-256 of a key. A slow hash protects secrets that can be guessed; among 2^256 equally likely ones
there is nothing to guess, and a slow hash would cost every request a thousand lookups.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable
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
    """A grant of lookups to a key: those whose target begins with these bytes, all of one application."""

    key: ApiKey
    begins: bytes
    authorization: Authorization
    application: str


class Presented:
    """A credential as a request carries it: no secret, its digest. `proven`: the key that it was found to be.
    `granted`: its last grant.

    Equal headers share one, so that a key is compared once and not for each lookup.
    """

    __slots__ = ("digest", "granted", "key_id", "proven")

    def __init__(self, key_id: str, digest: bytes) -> None:
        self.key_id = key_id
        self.digest = digest
        self.proven: ApiKey | None = None
        self.granted: Granted | None = None

    def proves(self, key: ApiKey) -> bool:
        """Whether this is the key; the comparison takes as long for a wrong one."""
        if self.proven is not key:
            if not hmac.compare_digest(key.digest, self.digest):
                return False
            self.proven = key
        return True


def new_key(random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> NewKey:
    """Make a new random key."""
    return _key(random_bytes(ID_BYTES), random_bytes(SECRET_BYTES))


def derived_key(secret: bytes, purpose: str) -> NewKey:
    """Derive the key that all who know a secret have for a purpose. The secret cannot be computed from it."""
    first, second = (hmac.digest(secret, b"understudy %b %b" % (part, purpose.encode()), "sha256") for part in _PARTS)
    return _key(first[:ID_BYTES], second)


def _key(key_id: bytes, secret: bytes) -> NewKey:
    return NewKey(key_id.hex(), f"usk_{key_id.hex()}_{urlsafe_b64encode(secret).rstrip(b'=').decode()}")


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
