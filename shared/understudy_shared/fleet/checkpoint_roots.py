"""The roots below which checkpoints of announced queries may lie (pure).

The pipeline that announces a query chooses its location. So it is compared in one form, and what is opened is written
anew: the root as the operator gave it, and below it plain names. Symbolic links are checked where files are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import masked_location
from understudy_shared.fleet.applications_file import LOCAL_SCHEMES, split_location

MAX_DECODINGS = 8
"""Times that an escaped name is decoded to see what it may be taken for."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}")
_HOST = re.compile("//[^/]")
_FIX = "Write absolute paths or URLs, separated by commas, such as s3://bucket/checkpoints"


class CheckpointRoot(NamedTuple):
    """One root. `beginning` is what stands before its path when it is opened; the rest is compared."""

    beginning: str
    place: str
    path: str
    """Its path without a slash at the end: empty for all of a store."""

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of a mounted file system."""
        return not self.place

    @property
    def location(self) -> str:
        """Its own location."""
        return f"{self.beginning}{self.path or '/'}"


class Below(NamedTuple):
    """A location below a root, as it is opened."""

    root: CheckpointRoot
    location: str


def parse_roots(text: str) -> tuple[CheckpointRoot, ...]:
    """Parse roots that are separated by commas; an empty text has no root. Raises SettingsError."""
    return tuple(dict.fromkeys([_root(part.strip()) for part in text.split(",")])) if text else ()


def below(location: str, roots: Iterable[CheckpointRoot]) -> Below | str:
    """Return what is opened for an announced location, or the reason why nothing is."""
    if (why := _ambiguity(location)) is not None:
        return why
    place, path = split_location(location)
    for root in roots:
        if place == root.place and path.startswith(f"{root.path}/") and path != "/":
            return Below(root, root.beginning + path)
    return "it lies below no --checkpoint-root"


def _root(text: str) -> CheckpointRoot:
    is_bare = text.partition(":")[0].lower() not in LOCAL_SCHEMES and "://" not in text
    given = str(Path(text).expanduser().absolute()) if is_bare and text else text
    if (why := _ambiguity(given)) is not None:
        raise SettingsError(f"a root cannot be used: {why}", where=f"checkpoint_root {masked_location(text)}", fix=_FIX)
    place, path = split_location(given)
    scheme, _, rest = given.partition("://")
    beginning = f"{scheme.lower()}://{rest.partition('/')[0]}" if place else ""
    return CheckpointRoot(beginning, place, path.rstrip("/"))


def _ambiguity(location: str) -> str | None:
    """Say what of a location could be taken for more than one place; `None` where it means one for every reader."""
    scheme, separator, rest = location.partition("://")
    if not location.isprintable():
        return "it has characters that cannot be printed"
    if not separator or scheme.lower() in LOCAL_SCHEMES:
        return _ambiguity_of_path(location)
    if _SCHEME.fullmatch(scheme) is None:
        return "it is neither a path nor a URL"
    if "?" in rest or "#" in rest:
        return "it has a query or a fragment"
    return "it has an escaped slash, or dots" if any(map(_is_hidden, rest.split("/"))) else None


def _ambiguity_of_path(location: str) -> str | None:
    scheme, _, rest = location.partition(":")
    has_scheme = scheme.lower() in LOCAL_SCHEMES
    if has_scheme and _HOST.match(rest) is not None:
        return "it names a host"
    path = rest if has_scheme else location
    return None if path.startswith("/") else "it is not an absolute path"


def _is_hidden(name: str) -> bool:
    """Whether a name, decoded once or more often, would be several names, or lead upward."""
    for _ in range(MAX_DECODINGS):
        decoded = unquote(name)
        if decoded == name:
            return False
        if "/" in decoded or "\\" in decoded or decoded in {".", ".."}:
            return True
        name = decoded
    return True
