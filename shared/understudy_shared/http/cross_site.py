"""Refuses changes that a page of another site makes a browser send (pure). Without identities, any caller may drain.

A request that may change something must say `Content-Type: application/json`, or be a DELETE: a browser sends those to
another site only if the site allows it by CORS, and no service here does for changes (`cors.py`). If the browser names
the site of the page, that is checked too; a form is taken only if it does.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy_shared.http.problems import Problem, ProblemType

READING = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing."""

_FORM = "application/x-www-form-urlencoded"

_OWN_SITES = frozenset(("same-origin", "none"))
"""Values of `Sec-Fetch-Site` for a page of this service, and for an address that the user typed."""


def why_refused(method: str, headers: Mapping[str, str]) -> Problem | None:
    """Return why a request is refused as one of another site; None when it may pass. Header names are in lower case."""
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
    """Say why a request is refused as one from a page of another site; None when it may pass.

    `Sec-Fetch-Site` is the browser's own verdict and decides alone: `Origin` is `null` when the page's referrer policy
    hides it, and differs from `Host` behind a proxy that rewrites that. Browsers leave the former out without TLS.
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
