"""The cursor of a paged list, as text (pure). It holds names and numbers only, and is checked like any input."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from typing import NamedTuple

import orjson

from understudy_shared.http.problems import Problem, ProblemError, ProblemType

MAX_CURSOR_CHARACTERS = 2048
_FIX = "Begin again without a cursor"


class BadLagCursorError(ProblemError):
    """An error for a cursor that is damaged, of another list, or too old."""

    def __init__(self, what: str) -> None:
        super().__init__(Problem(ProblemType.BAD_REQUEST, what, "cursor", _FIX))


class LagCursor(NamedTuple):
    """The last row of a page. `digest` names the list, `tick` the snapshot that the next page has to be read from, 0
    for any.
    """

    digest: int
    tick: int
    store: str
    partition: int
    node_id: str


def encoded(cursor: LagCursor) -> str:
    return urlsafe_b64encode(orjson.dumps(list(cursor))).decode().rstrip("=")


def decoded(text: str) -> LagCursor:
    """Decode a cursor. Raises BadLagCursorError."""
    if len(text) > MAX_CURSOR_CHARACTERS or not text.isascii():
        raise BadLagCursorError("the cursor does not parse")
    try:
        found = orjson.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (Error, ValueError):
        raise BadLagCursorError("the cursor does not parse") from None
    kinds = [type(each) for each in found] if isinstance(found, list) else []
    if kinds != [int, int, str, int, str] or min(found[0], found[1], found[3]) < 0:
        raise BadLagCursorError("the cursor does not parse")
    return LagCursor(*found)
