"""The page's static files, read once into memory: scripts, style, and vendored files.

The address of a file begins with the hash of all of them, so browsers may cache it for good: another release has other
addresses, and the modules of one load are all of one release.

The headers of the page: a browser may load only what this router serves, and run no other scripts.

With Trusted Types no script of the page can make HTML of a text: `innerHTML` and its kin are errors, so a store, key or
node with a hostile name stays a text. Runbooks and files may have no Trusted Types policy, so scripts there cannot get
around it. The page may have one policy, created once: `static/dom.js` makes it, for the parts of the page that this
router has drawn like the page itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}

FOREVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
"""The cache control for an address without the hash, or with that of another release: the browser asks whether the file
is still the same."""


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


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file. `etag` is of its own content."""

    body: bytes
    media_type: str
    etag: str


@dataclass(frozen=True, slots=True)
class Assets:
    """The static files by their path below `static/`; `build` names this set of them."""

    by_path: Mapping[str, Asset]
    build: str


@cache
def page_assets() -> Assets:
    """Return the files of this release."""
    found = dict(_assets(files("understudy_shared.page").joinpath("static"), ""))
    digest = hashlib.sha256()
    for path, asset in sorted(found.items()):
        digest.update(f"{path}\0{asset.etag}\0".encode())
    return Assets(found, digest.hexdigest()[:16])


def _assets(folder: Traversable, above: str) -> list[tuple[str, Asset]]:
    found: list[tuple[str, Asset]] = []
    for entry in folder.iterdir():
        path = f"{above}{entry.name}"
        if entry.is_dir():
            found += _assets(entry, f"{path}/")
            continue
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in _TYPES:
            body = entry.read_bytes()
            found.append((path, Asset(body, _TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')))
    return found
