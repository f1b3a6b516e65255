"""The page's static files, read once into memory: scripts, style, and vendored files.

The address of a file begins with the hash of all of them, so browsers may cache it for good: another release has other
addresses, and the modules of one load are all of one release.
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
    found = dict(_assets(files("understudy_router.page").joinpath("static"), ""))
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
