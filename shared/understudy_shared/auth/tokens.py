"""The check of a token: signed by its issuer, for this service, now. `PyJWT` checks signatures, and nothing else.

A token is checked once. Its grants are cached by the digest of its bytes until it ends, so a request with a known one
costs what one with an API key does. This module needs the extra `jwt`.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Any

import jwt
import orjson

from understudy_shared.auth.api_keys import ApiKey
from understudy_shared.auth.issuers import Issuer
from understudy_shared.auth.key_sets import PublicKey
from understudy_shared.auth.presented import BadTokenError, PresentedToken

MAX_TIME_S = 1e11
"""Limit on times: later ones are mistakes (milliseconds, perhaps), and would make a token valid for ever."""

_UNCHECKED = {
    "verify_signature": True,
    **dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss"), False),
    **dict.fromkeys(("verify_sub", "verify_jti"), False),
}


def issuer_of(token: bytes, issuers: Mapping[str, Issuer]) -> Issuer:
    """Return the issuer that a token states; nothing of it was checked yet. Raises BadTokenError."""
    stated = _object_in(token.split(b".")[1]).get("iss")
    issuer = issuers.get(stated) if isinstance(stated, str) else None
    if issuer is None:
        raise BadTokenError("the token is of an unknown issuer")
    return issuer


def check_token(presented: PresentedToken, issuer: Issuer, keys: Mapping[str, PublicKey], now_s: float) -> ApiKey:
    """Check a token, and return its grants and its end (pure). Raises BadTokenError."""
    header = _object_in(presented.token.split(b".")[0])
    key, algorithm = _key_for(header, issuer, keys)
    try:
        claims = jwt.decode(presented.token, key.key, algorithms=[algorithm], options=_UNCHECKED)  # type: ignore[arg-type]
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise BadTokenError("the token has a wrong signature") from None
    return _good_for(presented, issuer, claims, now_s)


def _key_for(header: Mapping[str, Any], issuer: Issuer, keys: Mapping[str, PublicKey]) -> tuple[PublicKey, str]:
    """Return the key that must have signed, from the issuer's set alone: keys in the token itself are ignored."""
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
        raise BadTokenError("the token has an algorithm that is not accepted")
    if "crit" in header or "b64" in header or not _is_plain(header.get("typ", "JWT")):
        raise BadTokenError("the token is of a kind that is not accepted")
    if not isinstance(kid, str):
        raise BadTokenError("the token is without kid")
    key = keys.get(kid)
    if key is None:
        raise BadTokenError("the token is signed by an unknown key", lacks_key_of=issuer.issuer)
    if algorithm not in key.algorithms:
        raise BadTokenError("the token has an algorithm that its key is not for")
    return key, algorithm


def _is_plain(kind: object) -> bool:
    return isinstance(kind, str) and kind.lower().removeprefix("application/") in {"jwt", "at+jwt"}


def _good_for(presented: PresentedToken, issuer: Issuer, claims: Mapping[str, Any], now_s: float) -> ApiKey:
    """Return the key of signed claims. Clocks may differ by the leeway, at both ends."""
    audience = claims.get("aud")
    meant_for = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != issuer.issuer:
        raise BadTokenError("the token is of another issuer")
    if not any(isinstance(each, str) and each in issuer.audience for each in meant_for):
        raise BadTokenError("the token is for another audience")
    ends_s, begins_s = _time_of(claims, "exp"), _time_of(claims, "nbf")
    if ends_s is None:
        raise BadTokenError("the token is without an end")
    if now_s >= ends_s + issuer.leeway_s:
        raise BadTokenError("the token has expired", is_expired=True)
    if begins_s is not None and now_s < begins_s - issuer.leeway_s:
        raise BadTokenError("the token is not good yet")
    principal = issuer.principal_of(claims)
    if principal is None:
        raise BadTokenError("the token names no principal")
    return ApiKey(presented.key_id, presented.digest, principal, ends_s + issuer.leeway_s)


def _time_of(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time in seconds; None without one. Raises BadTokenError for a value that is no time."""
    if name not in claims:
        return None
    found = claims[name]
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < MAX_TIME_S:
        raise BadTokenError(f"the token has a wrong {name}")
    return float(found)


def _object_in(part: bytes) -> dict[str, Any]:
    """Parse a part of a token. `orjson` bounds its depth."""
    try:
        found = orjson.loads(urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadTokenError("this is no token")
    return found
