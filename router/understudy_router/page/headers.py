"""The headers of the page: a browser may load only what this router serves, and run no other scripts.

With Trusted Types no script of the page can make HTML of a text: `innerHTML` and its kin are errors, so a store, key or
node with a hostile name stays a text. Runbooks and files may have no Trusted Types policy, so scripts there cannot get
around it. The page may have one policy, created once: `static/dom.js` makes it, for the parts of the page that this
router has drawn like the page itself.
"""

from __future__ import annotations

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

SECURITY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of the page and of each of its files."""

PAGE = {**SECURITY, "cache-control": "no-store"}
"""Headers of runbooks, and, but for the policy, of the page: it is true only now, so it must not be cached."""

LIVE = {**PAGE, "content-security-policy": POLICY.replace("trusted-types 'none'", "trusted-types understudy")}
"""Headers of the page itself."""
