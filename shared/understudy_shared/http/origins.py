"""Rules for pages of other sites in a browser: they must not change anything, and may read only if CORS allows their
origin (pure).

A request that may change something must have `Content-Type: application/json`, or be a DELETE: a browser sends these to
another site only if that site allows it by CORS, and no service here does so for changes. If the browser names the site
of the page, that is checked, too; a form is accepted only if the browser names it.

CORS (the Fetch standard) opens the calls of the OpenAPI document to scripts of named origins; it opens no page and no
call between services. By default no other origin may read. CORS never allows credentials that a browser sends by
itself: a script must send `Authorization`. Changes are refused for all other origins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from understudy_shared.base.errors import SettingsError
from understudy_shared.http.edge import App, Receive, Scope, Send, adding
from understudy_shared.http.problems import Problem, ProblemType

READING = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing."""

_FORM = "application/x-www-form-urlencoded"

_OWN_SITES = frozenset(("same-origin", "none"))
"""Values of `Sec-Fetch-Site` for a page of this service, and for an address that the user typed."""


def why_refused(method: str, headers: Mapping[str, str]) -> Problem | None:
    """Return why a request is refused as coming from another site, or None. Header names are in lower case."""
    if method in READING:
        return None
    foreign = why_foreign(headers)
    if foreign is not None:
        return foreign
    if method == "DELETE":
        return None  # A browser asks first whether it may send that to another site, and no service here allows it.
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == _FORM and ("sec-fetch-site" in headers or "origin" in headers):
        return None  # The browser says that a page of this service sends the form.
    if kind != "application/json":
        return Problem(
            ProblemType.NOT_JSON,
            f"the body is {kind[:100] or 'of no named type'}, not application/json",
            "header Content-Type",
            "Send Content-Type: application/json, with curl by -H 'content-type: application/json'",
        )
    return None


def why_foreign(headers: Mapping[str, str]) -> Problem | None:
    """Return why a request is refused as coming from a page of another site; None if it may pass.

    If present, `Sec-Fetch-Site` decides alone, because it is the browser's own verdict. `Origin` is `null` if the
    referrer policy of the page hides it, and differs from `Host` behind a proxy that rewrites `Host`. Browsers send
    `Sec-Fetch-Site` only with TLS.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        said = f"the browser says that its page is {site:.40}"
        return None if site in _OWN_SITES else _cross_site(said, "header Sec-Fetch-Site")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        return _cross_site(f"the page is of {origin:.200}, not of this service", "header Origin")
    return None


def _cross_site(detail: str, where: str) -> Problem:
    return Problem(ProblemType.CROSS_SITE, detail, where, "Send it from a page of this service, or not from a browser")


MAX_ORIGINS = 64

MAX_AGE_S = 600
"""Seconds for which a browser caches the permission. An origin that is no longer named is refused at once."""

Headers = tuple[tuple[bytes, bytes], ...]

_ORIGIN = re.compile(
    r"(?P<scheme>https?)://(?:[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::(?P<port>[1-9][0-9]{0,4}))?"
)
_USUAL_PORTS = {"http": "80", "https": "443"}

_SHARED_BELOW = (b"/v1/", b"/admin/v1/")
_SHARED = frozenset((b"/openapi.json", b"/livez", b"/healthz", b"/readyz", b"/metrics"))
_BATCH = re.compile(rb"/v1/stores/[^/]+/lookup")

_ALLOW_ORIGIN = b"access-control-allow-origin"
_VARY = (b"vary", b"origin")
_EXPOSED = (b"access-control-expose-headers", b"etag, retry-after, www-authenticate")
"""Headers that a script may read in addition to the usual ones: clients act on them."""

_TO_SEND = (
    (
        b"access-control-allow-headers",
        b"authorization, content-type, if-none-match, last-event-id, traceparent, tracestate",
    ),
    (b"access-control-max-age", b"%d" % MAX_AGE_S),
)
_FOR_OTHERS: Headers = (_VARY,)


def parse_origins(text: str) -> frozenset[bytes]:
    """Parse origins that are separated by commas. Raises SettingsError that names the wrong one, and the right form."""
    found = [each for each in map(str.strip, text.split(",")) if each]
    for origin in found:
        why = _why_no_origin(origin)
        if why is not None:
            raise SettingsError(f"{origin[:200]!r} {why}", where="cors_origins", fix=_FIX)
    if len(found) > MAX_ORIGINS:
        raise SettingsError(
            f"there are {len(found)} origins, above {MAX_ORIGINS}", where="cors_origins", fix="Name those in use"
        )
    return frozenset(origin.encode() for origin in found)


_FIX = "Give origins as browsers send them, with commas between: https://app.example.com,http://localhost:3000"


def _why_no_origin(text: str) -> str | None:
    """Return why a text is not an origin; None if it is one, exactly in the form that browsers send."""
    if text == "*":
        return "would let every page that a user opens read what that user's browser can reach: name each origin"
    if text == "null":
        return "is what every sandboxed page and local file is called: name an origin of http or https"
    match = _ORIGIN.fullmatch(text)
    if match is None:
        return "is not an origin: a scheme and a host in lower case, a port if it is unusual, no path, no slash"
    if match["port"] == _USUAL_PORTS[match["scheme"]]:
        return "names the usual port, which browsers leave out"
    return None if int(match["port"] or 1) <= 65535 else "has no such port"


def origin_in(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the origin that a request states; None without one, empty if it states several."""
    found = [value for name, value in headers if name == b"origin"]
    return (found[0] if len(found) == 1 else b"") if found else None


class Cors:
    """The origins whose pages may read from a service."""

    def __init__(self, origins: Iterable[bytes]) -> None:
        self._by_origin: dict[bytes, Headers] = {
            origin: ((_ALLOW_ORIGIN, origin), _EXPOSED, _VARY) for origin in origins
        }

    def __repr__(self) -> str:
        return f"Cors({', '.join(origin.decode() for origin in sorted(self._by_origin))})"

    def headers(self, origin: bytes | None) -> Headers:
        """Return the headers of answers to requests of that origin. They tell caches that answers differ by origin."""
        return self._by_origin.get(origin or b"", _FOR_OTHERS)

    def preflight(self, scope: Scope) -> App | None:
        """Return the application that answers a browser's preflight. Return None for all other requests, and for other
        origins, which get the answer of a service without CORS. Call this before authentication: browsers send
        preflights without credentials.
        """
        if scope["method"] != "OPTIONS" or not is_shared(scope["raw_path"]):
            return None
        origin = origin_in(scope["headers"]) or b""
        asks = any(name == b"access-control-request-method" for name, _ in scope["headers"])
        if origin not in self._by_origin or not asks:
            return None
        methods = b"GET, HEAD, POST" if _BATCH.fullmatch(scope["raw_path"]) else b"GET, HEAD"
        told = [(_ALLOW_ORIGIN, origin), (b"access-control-allow-methods", methods), *_TO_SEND, _VARY]

        async def tell(_scope: Scope, _receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 204, "headers": told})
            await send({"type": "http.response.body", "body": b""})

        return tell

    def around(self, scope: Scope, app: App) -> App:
        """Wrap `app`: its answer to this request gets the headers."""
        if not is_shared(scope["raw_path"]):
            return app
        added = self.headers(origin_in(scope["headers"]))

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await app(scope, receive, adding(added, send))

        return answer


def is_shared(raw_path: bytes) -> bool:
    """Whether pages of other origins may read this path: a call of the OpenAPI document."""
    return raw_path.startswith(_SHARED_BELOW) or raw_path in _SHARED
