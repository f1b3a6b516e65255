"""The prefix under which a proxy publishes a service (`root_path`, as ASGI calls it), and links that fit it (pure).

A proxy that takes the prefix off needs no setting: pages link relative to themselves. For one that passes it on the
setting names it. Requests are then answered with and without it, so probes and nodes do not have to know of it.
"""

from __future__ import annotations

import re
from typing import Final

from understudy_shared.base.errors import SettingsError
from understudy_shared.http.edge import ASKED_PATH, Scope

ROOT_PATH: Final = "understudy.root_path"
"""The key in the scope of a request that holds the setting. ASGI's own key would make the framework take the prefix off
once more, of a path that was checked without it.
"""

_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_OUR_OWN = frozenset(("v1", "admin", "internal", "docs", "openapi.json", "metrics", "livez", "readyz", "healthz"))
_FIX = "Write the prefix as the proxy has it: /understudy"
_INTERNAL = b"/internal/"


def parse_root_path(text: str) -> str:
    """Return the prefix without a slash at its end; "" without one. Raises SettingsError."""
    path = text.rstrip("/")
    first = path.partition("/")[2].partition("/")[0]
    if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        why = "is not a path of segments of letters, digits, '-', '.', '_' and '~', each behind a slash"
    elif first in _OUR_OWN:
        why = f"begins like the service's own paths below /{first}"
    else:
        return path
    raise SettingsError(f"{text[:200]!r} {why}", where="root_path", fix=_FIX)


def without_root(target: bytes, root_path: bytes) -> bytes:
    """Return a target without the prefix, or as it is. Calls between services never have it."""
    rest = target[len(root_path) :]
    if not target.startswith(root_path) or rest.startswith(_INTERNAL):
        return target
    return rest if rest.startswith(b"/") else b"/" + rest if not rest or rest.startswith(b"?") else target


def to_root(scope: Scope) -> str:
    """Return the relative reference from the page of a request to the root of the service, with a slash at its end."""
    path: bytes = scope.get(ASKED_PATH, scope["raw_path"])
    return "../" * (path.count(b"/") - 1) or "./"


def address_of(scope: Scope, path: str) -> str:
    """Return where a browser finds a path of this service, for the header `location`.

    It begins with the prefix if that is set. Else it is relative, so that a proxy may have taken a prefix off.
    """
    root_path: str = scope.get(ROOT_PATH, "")
    return f"{root_path}{path}" if root_path else f"{to_root(scope)}{path[1:]}"
