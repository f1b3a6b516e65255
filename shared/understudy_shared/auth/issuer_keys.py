"""The key sets of issuers while a service runs: read from files, or fetched over HTTP, and cached. Needs the extra
`jwt`.

A request waits for an issuer only if the signing key of its token is unknown, and not for long. If an issuer does not
answer, its known keys stay in use for a day.

A token must be signed by its issuer, for this service, and be valid now. `PyJWT` only checks the signature.

A token is checked once. Its grants are cached by the digest of its bytes until it expires, so a request with a known
token costs as much as one with an API key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import Request

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from understudy_shared.auth.credentials import Issuer
from understudy_shared.auth.presented import ApiKey, BadTokenError, PresentedToken
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.throttles import Reminder
from understudy_shared.http.opener import is_loopback, url_opener

log = logging.getLogger(__name__)

_HEADERS = {"accept": "application/json", "user-agent": "understudy"}

FETCH_LIMIT_S = 5.0
"""Time limit for the answer of an issuer to begin, for each pause in it, and for the whole."""


MAX_TIME_S = 1e11
"""Limit on times. A later one is a mistake (milliseconds, perhaps), and would make a token valid for ever."""

_UNCHECKED = {
    "verify_signature": True,
    **dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss"), False),
    **dict.fromkeys(("verify_sub", "verify_jti"), False),
}


MAX_SET_BYTES = 256 * 1024
MAX_KEYS = 64
MAX_KID_CHARS = 256
MIN_RSA_BITS = 2048

REFRESH_S = 300.0
"""Age at which keys are fetched again."""

COOL_DOWN_S = 30.0
"""Seconds between two requests to an issuer: forged tokens cannot make us hammer it."""

MAX_AGE_S = 24 * 3600.0
"""Age up to which keys are used while their issuer does not answer, so that a withdrawn key is not trusted for ever."""

_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}
_EVERY_RSA = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))


class KeySetError(UnderstudyError):
    """A key set cannot be used."""


class PublicKey(NamedTuple):
    """A key, and the algorithms whose signatures it verifies."""

    key: Any
    algorithms: frozenset[str]
    said: bytes
    """Its numbers as they are in the key set."""


def parse_key_set(data: bytes) -> dict[str, PublicKey]:
    """Parse the keys of a set, by `kid`. Keys for another use, and those without `kid`, are left out.

    Raises KeySetError for a malformed key set, and for one without a usable key.
    """
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        found = None
    members = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(members, list):
        raise KeySetError("this is not a key set", fix='It is JSON: {"keys": [...]} (RFC 7517)')
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
    """Return the algorithms that a key may be used for, according to its type, its curve, and its `alg` if set."""
    match member.get("kty"), member.get("crv"):
        case "RSA", _:
            fit = _EVERY_RSA
        case (("EC" | "OKP"), str() as curve):
            fit = frozenset(name for name, each in _CURVES.items() if each == curve)
        case _:
            fit = frozenset()
    return fit if member.get("alg") is None else frozenset(name for name in fit if name == member["alg"])


class KeySetAge:
    """The age of a key set, and when it may be fetched. Rule: two fetches are at least COOL_DOWN_S apart.

    Times are of the same clock as the expiry of tokens. If it is set back, one cool-down is longer.
    """

    def __init__(self) -> None:
        self._read_s = self._asked_s = float("-inf")

    def may_ask(self, now_s: float) -> bool:
        return now_s - self._asked_s >= COOL_DOWN_S

    def is_due(self, now_s: float) -> bool:
        """Whether a fetch is due even if no token needs it."""
        return self.may_ask(now_s) and now_s - self._read_s >= REFRESH_S

    def asked(self, now_s: float) -> None:
        self._asked_s = now_s

    def read(self, now_s: float) -> None:
        self._read_s = now_s

    def is_too_old(self, now_s: float) -> bool:
        return now_s - self._read_s > MAX_AGE_S


def issuer_of(token: bytes, issuers: Mapping[str, Issuer]) -> Issuer:
    """Return the issuer that a token names. The token is not checked yet. Raises BadTokenError."""
    stated = _object_in(token.split(b".")[1]).get("iss")
    issuer = issuers.get(stated) if isinstance(stated, str) else None
    if issuer is None:
        raise BadTokenError("the token is of an unknown issuer")
    return issuer


def check_token(presented: PresentedToken, issuer: Issuer, keys: Mapping[str, PublicKey], now_s: float) -> ApiKey:
    """Check a token, and return its grants and its expiry (pure). Raises BadTokenError."""
    header = _object_in(presented.token.split(b".")[0])
    key, algorithm = _key_for(header, issuer, keys)
    try:
        claims = jwt.decode(presented.token, key.key, algorithms=[algorithm], options=_UNCHECKED)  # type: ignore[arg-type]
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise BadTokenError("the token has a wrong signature") from None
    return _good_for(presented, issuer, claims, now_s)


def _key_for(header: Mapping[str, Any], issuer: Issuer, keys: Mapping[str, PublicKey]) -> tuple[PublicKey, str]:
    """Return the key that must have signed the token. It is always from the issuer's set, never from the token."""
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in issuer.stored.algorithms:
        raise BadTokenError("the token has an algorithm that is not accepted")
    if "crit" in header or "b64" in header or not _is_plain(header.get("typ", "JWT")):
        raise BadTokenError("the token is of a kind that is not accepted")
    if not isinstance(kid, str):
        raise BadTokenError("the token is without kid")
    key = keys.get(kid)
    if key is None:
        raise BadTokenError("the token is signed by an unknown key", lacks_key_of=issuer.stored.issuer)
    if algorithm not in key.algorithms:
        raise BadTokenError("the token has an algorithm that its key is not for")
    return key, algorithm


def _is_plain(kind: object) -> bool:
    return isinstance(kind, str) and kind.lower().removeprefix("application/") in {"jwt", "at+jwt"}


def _good_for(presented: PresentedToken, issuer: Issuer, claims: Mapping[str, Any], now_s: float) -> ApiKey:
    """Return the key of signed claims. Clocks may differ by the leeway, at the beginning and the end of the token."""
    audience = claims.get("aud")
    meant_for = audience if isinstance(audience, list) else [audience]
    if claims.get("iss") != issuer.stored.issuer:
        raise BadTokenError("the token is of another issuer")
    if not any(isinstance(each, str) and each in issuer.stored.audience for each in meant_for):
        raise BadTokenError("the token is for another audience")
    ends_s, begins_s = _time_of(claims, "exp"), _time_of(claims, "nbf")
    if ends_s is None:
        raise BadTokenError("the token is without an end")
    if now_s >= ends_s + issuer.stored.leeway_s:
        raise BadTokenError("the token has expired", is_expired=True)
    if begins_s is not None and now_s < begins_s - issuer.stored.leeway_s:
        raise BadTokenError("the token is not good yet")
    principal = issuer.principal_of(claims)
    if principal is None:
        raise BadTokenError("the token names no principal")
    return ApiKey(presented.key_id, presented.digest, principal, ends_s + issuer.stored.leeway_s)


def _time_of(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time in seconds; None without one. Raises BadTokenError for any other value."""
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
        raise BadTokenError("this is not a token")
    return found


class FetchError(UnderstudyError):
    """A key set could not be fetched."""


class IssuerKeys:
    def __init__(self, issuer: Issuer, changed: Callable[[], None], now_s: Callable[[], float]) -> None:
        """Take an issuer. `changed` is called when its keys change."""
        self.issuer = issuer
        self.keys: Mapping[str, PublicKey] = {}
        self.failed: str | None = None
        """The reason why the last fetch failed; None if it succeeded."""
        self._changed = changed
        self._now_s = now_s
        self._age = KeySetAge()
        self._reminder = Reminder()
        self._asking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"IssuerKeys({self.issuer.name}, {len(self.keys)} keys)"

    def look(self) -> None:
        """Fetch the keys if that is due, and forget keys that are too old. Called on the loop now and then."""
        now_s = self._now_s()
        if self._age.is_due(now_s):
            self._ask(now_s)
        if self.keys and self._age.is_too_old(now_s):
            self._use({})

    def asked_for(self) -> asyncio.Task[None] | None:
        """Fetch because a token needs an unknown key. Return the task to wait for; None during the cool-down."""
        now_s = self._now_s()
        if self._asking is None and self._age.may_ask(now_s):
            self._ask(now_s)
        return self._asking

    def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    def _ask(self, now_s: float) -> None:
        if self._asking is not None:
            return
        self._age.asked(now_s)
        task = asyncio.get_running_loop().create_task(self._read(), name=f"read the keys of {self.issuer.name}")
        self._asking = task

    async def _read(self) -> None:
        try:
            found = await asyncio.to_thread(_key_set_at, self.issuer.key_source)
        except Exception as error:  # libraries raise errors of many kinds for hosts and certificates
            said = str(error) if isinstance(error, UnderstudyError) else repr(error)
            self.failed = f"the keys of issuer {self.issuer.name} cannot be read: {said}"
            if self._reminder.is_due(self._now_s() * 1000):
                log.warning("%s", self.failed, extra={"action": "issuer-keys-failed", "issuer": self.issuer.name})
        else:
            self.failed = None
            self._reminder.reset()
            self._age.read(self._now_s())
            self._use(found)
        finally:
            self._asking = None

    def _use(self, keys: Mapping[str, PublicKey]) -> None:
        if _said_of(keys) == _said_of(self.keys):
            return
        names = sorted(keys)[:20]
        extra = {"action": "audit-config", "issuer": self.issuer.name, "keys": ",".join(names), "outcome": "used"}
        log.warning("issuer %s has %d keys now", self.issuer.name, len(keys), extra=extra)
        self.keys = keys
        self._changed()


class TrustedIssuers:
    """The trusted issuers, with their keys."""

    def __init__(self, changed: Callable[[], None], now_s: Callable[[], float]) -> None:
        """Start without issuers. `changed` is called when the keys of an issuer change."""
        self._changed = changed
        self._now_s = now_s
        self._by_issuer: dict[str, IssuerKeys] = {}

    def __repr__(self) -> str:
        return f"TrustedIssuers({', '.join(map(repr, self._by_issuer.values()))})"

    @property
    def failed(self) -> list[str]:
        return [each.failed for each in self._by_issuer.values() if each.failed is not None]

    def trust(self, issuers: Mapping[str, Issuer]) -> None:
        """Trust only these issuers from now on. An issuer with the same key source keeps its known keys."""
        before, self._by_issuer = self._by_issuer, {}
        for stated, issuer in issuers.items():
            known = before.get(stated)
            if known is not None and known.issuer.key_source == issuer.key_source:
                known.issuer = issuer
                self._by_issuer[stated] = known
            else:
                self._by_issuer[stated] = IssuerKeys(issuer, self._changed, self._now_s)
        for each in before.values():
            if each not in self._by_issuer.values():
                each.stop()

    def checked(self, presented: PresentedToken, now_s: float) -> ApiKey:
        """Check a token, and return its grants. Raises BadTokenError."""
        issuer = issuer_of(presented.token, self._issuers)
        return check_token(presented, issuer, self._by_issuer[issuer.stored.issuer].keys, now_s)

    def asked_for(self, why: BadTokenError) -> asyncio.Task[None] | None:
        """Return the running fetch of a token's key from its issuer; None if the token is bad for another reason, or
        the issuer was asked just now.
        """
        keys = self._by_issuer.get(why.lacks_key_of)
        return None if keys is None else keys.asked_for()

    def look(self) -> None:
        for each in self._by_issuer.values():
            each.look()

    def stop(self) -> None:
        for each in self._by_issuer.values():
            each.stop()

    @property
    def _issuers(self) -> dict[str, Issuer]:
        return {stated: each.issuer for stated, each in self._by_issuer.items()}


def _said_of(keys: Mapping[str, PublicKey]) -> dict[str, tuple[bytes, frozenset[str]]]:
    """Return comparable content of a key set, because parsing makes new objects each time."""
    return {kid: (key.said, key.algorithms) for kid, key in keys.items()}


def _key_set_at(source: str) -> dict[str, PublicKey]:
    """Read the keys at a URL or in a file. It blocks. Raises UnderstudyError, and the errors of HTTP libraries."""
    if "://" in source:
        return parse_key_set(_fetched(source))
    with Path(source).open("rb") as file:
        data = file.read(MAX_SET_BYTES + 1)
    _refuse_long(len(data), source)
    return parse_key_set(data)


def _fetched(url: str) -> bytes:
    """Fetch the whole answer of a URL, uncompressed and without redirects."""
    limit_s = time.monotonic() + FETCH_LIMIT_S
    parts: list[bytes] = []
    request = Request(url, headers=_HEADERS)  # noqa: S310  # credentials name http or https only
    opener = url_opener(None, uses_proxies=not is_loopback(urlsplit(url).hostname or ""))
    with opener.open(request, timeout=FETCH_LIMIT_S) as answer:
        if answer.status != 200 or "content-encoding" in answer.headers:
            raise FetchError(f"it answers with {answer.status}, not with a key set", where=url)
        while part := answer.read1(8192):
            parts.append(part)
            _refuse_long(sum(map(len, parts)), url)
            if time.monotonic() > limit_s:
                raise FetchError(f"it takes more than {FETCH_LIMIT_S:.0f} s", where=url)
        if answer.length:  # `read1` does not notice that an answer is cut off
            raise FetchError(f"its answer ends {answer.length} bytes too early", where=url)
    return b"".join(parts)


def _refuse_long(size_bytes: int, where: str) -> None:
    if size_bytes > MAX_SET_BYTES:
        raise FetchError(f"the key set has more than {MAX_SET_BYTES} bytes", where=where)
