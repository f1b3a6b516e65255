"""Whether a token is good: signed by its issuer, for this service, now. `PyJWT` checks signatures, and nothing else.

A token is checked once. What it grants is kept by the digest of its bytes until it ends, so a request with a known one
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
"""Later times are nonsense (milliseconds, perhaps), and a token is not good for ever by mistake."""

_UNCHECKED = {
    "verify_signature": True,
    **dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss"), False),
    **dict.fromkeys(("verify_sub", "verify_jti"), False),
}


def issuer_of(token: bytes, issuers: Mapping[str, Issuer]) -> Issuer:
    """Who says that he has issued a token; nothing of it was checked yet. Raises BadTokenError."""
    stated = _object_in(token.split(b".")[1]).get("iss")
    issuer = issuers.get(stated) if isinstance(stated, str) else None
    if issuer is None:
        raise BadTokenError("token of an unknown issuer")
    return issuer


def check_token(presented: PresentedToken, issuer: Issuer, keys: Mapping[str, PublicKey], now_s: float) -> ApiKey:
    """What a good token is good for, and until when (pure). Raises BadTokenError."""
    header = _object_in(presented.token.split(b".")[0])
    key, algorithm = _key_for(header, issuer, keys)
    try:
        claims = jwt.decode(presented.token, key.key, algorithms=[algorithm], options=_UNCHECKED)  # type: ignore[arg-type]
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise BadTokenError("token with a wrong signature") from None
    return _good_for(presented, issuer, claims, now_s)


def _key_for(header: Mapping[str, Any], issuer: Issuer, keys: Mapping[str, PublicKey]) -> tuple[PublicKey, str]:
    """The key that must have signed, by the issuer's set alone: what a token says of keys otherwise is not followed."""
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
        raise BadTokenError("token with an algorithm that is not accepted")
    if "crit" in header or "b64" in header or not _is_plain(header.get("typ", "JWT")):
        raise BadTokenError("token of a kind that is not accepted")
    if not isinstance(kid, str):
        raise BadTokenError("token without kid")
    key = keys.get(kid)
    if key is None:
        raise BadTokenError("token signed by an unknown key", lacks_key_of=issuer.issuer)
    if algorithm not in key.algorithms:
        raise BadTokenError("token with an algorithm that its key is not for")
    return key, algorithm


def _is_plain(kind: object) -> bool:
    return isinstance(kind, str) and kind.lower().removeprefix("application/") in {"jwt", "at+jwt"}


def _good_for(presented: PresentedToken, issuer: Issuer, claims: Mapping[str, Any], now_s: float) -> ApiKey:
    """What signed claims come to. Clocks may differ by the leeway, at both ends."""
    audience = claims.get("aud")
    meant_for = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != issuer.issuer:
        raise BadTokenError("token of another issuer")
    if not any(isinstance(each, str) and each in issuer.audience for each in meant_for):
        raise BadTokenError("token for another audience")
    ends_s, begins_s = _time_of(claims, "exp"), _time_of(claims, "nbf")
    if ends_s is None:
        raise BadTokenError("token without an end")
    if now_s >= ends_s + issuer.leeway_s:
        raise BadTokenError("token that has expired", is_expired=True)
    if begins_s is not None and now_s < begins_s - issuer.leeway_s:
        raise BadTokenError("token that is not good yet")
    principal = issuer.principal_of(claims)
    if principal is None:
        raise BadTokenError("token that names nobody")
    return ApiKey(presented.key_id, presented.digest, principal, ends_s + issuer.leeway_s)


def _time_of(claims: Mapping[str, Any], name: str) -> float | None:
    """A time in seconds; None without one. Raises BadTokenError for what is no time."""
    if name not in claims:
        return None
    found = claims[name]
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < MAX_TIME_S:
        raise BadTokenError(f"token with a wrong {name}")
    return float(found)


def _object_in(part: bytes) -> dict[str, Any]:
    """A part of a token. `orjson` bounds its depth."""
    try:
        found = orjson.loads(urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadTokenError("no token")
    return found
