"""The public keys of an issuer (JWKS, RFC 7517): which of them are used, and when they are fetched again (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from understudy_shared.base.errors import UnderstudyError

MAX_SET_BYTES = 256 * 1024
MAX_KEYS = 64
MAX_KID_CHARS = 256
MIN_RSA_BITS = 2048

REFRESH_S = 300.0
"""Age from which keys are fetched again."""

COOL_DOWN_S = 30.0
"""Seconds between two requests to an issuer: forged tokens cannot make us hammer it."""

MAX_AGE_S = 24 * 3600.0
"""Age up to which keys are used while their issuer does not answer: a withdrawn key is not trusted for ever."""

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}
_EVERY_RSA = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))


class KeySetError(UnderstudyError):
    """A key set cannot be used."""


class PublicKey(NamedTuple):
    """A key, and the algorithms whose signatures it verifies."""

    key: Any
    algorithms: frozenset[str]
    said: bytes
    """Its numbers, as the set has them."""


def parse_key_set(data: bytes) -> dict[str, PublicKey]:
    """Parse the keys of a set, by `kid`. Keys for another use, and those without `kid`, are left out.

    Raises KeySetError for data that is no key set, and for a set without a usable key.
    """
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        found = None
    members = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(members, list):
        raise KeySetError("this is no key set", fix='It is JSON: {"keys": [...]} (RFC 7517)')
    if len(members) > MAX_KEYS:
        raise KeySetError(f"it has {len(members)} keys, above {MAX_KEYS}", fix="Give a set with fewer")
    keys = {}
    for member in members:
        key = _key_of(member) if isinstance(member, dict) else None
        if key is not None:
            keys[member["kid"]] = key
    if not keys:
        what = f"none of {len(members)} keys can be used"
        raise KeySetError(
            what, fix="Needed: kid, use sig or absent, RSA of 2,048 bits or more, P-256, P-384, P-521, Ed25519"
        )
    return keys


def _key_of(member: Mapping[str, Any]) -> PublicKey | None:
    kid, use, operations = member.get("kid"), member.get("use", "sig"), member.get("key_ops", ["verify"])
    is_named = isinstance(kid, str) and 0 < len(kid) <= MAX_KID_CHARS
    if not is_named or use != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    algorithms = _algorithms_of(member)
    if not algorithms:
        return None
    public = {name: value for name, value in member.items() if name in {"kty", "crv", "n", "e", "x", "y"}}
    try:
        key = jwt.PyJWK(public, algorithm=min(algorithms)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, RecursionError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        return None
    return PublicKey(key, algorithms, orjson.dumps(public, option=orjson.OPT_SORT_KEYS))


def _algorithms_of(member: Mapping[str, Any]) -> frozenset[str]:
    """Return the algorithms that a key may be used for: by its type and curve, and by its `alg` if it has one."""
    match member.get("kty"), member.get("crv"):
        case "RSA", _:
            fit = _EVERY_RSA
        case (("EC" | "OKP"), str() as curve):
            fit = frozenset(name for name, each in _CURVES.items() if each == curve)
        case _:
            fit = frozenset()
    return fit if member.get("alg") is None else frozenset(name for name in fit if name == member["alg"])


class KeySetAge:
    """The age of a key set, and when it may be fetched. Rule: two fetches are COOL_DOWN_S apart at least.

    Times are those of the clock by which tokens end. When it is put back the cool-down is longer, once.
    """

    def __init__(self) -> None:
        self._read_s = self._asked_s = float("-inf")

    def may_ask(self, now_s: float) -> bool:
        """Whether enough time has passed since the last fetch."""
        return now_s - self._asked_s >= COOL_DOWN_S

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to fetch again, without a token that needs it."""
        return self.may_ask(now_s) and now_s - self._read_s >= REFRESH_S

    def asked(self, now_s: float) -> None:
        self._asked_s = now_s

    def read(self, now_s: float) -> None:
        self._read_s = now_s

    def is_too_old(self, now_s: float) -> bool:
        """Whether the keys are used no longer."""
        return now_s - self._read_s > MAX_AGE_S
