"""The rows of a scan as one table or list (pure): by an Arrow export where it has them, else page after page.

Rule. A table has every row once, of one version: an export that is cut is resumed after its last cursor, or read again
from its beginning, and ends in a table only with the record of its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from understudy.client.core.exchange import Failure, Receive, Steps, Wait
from understudy.client.core.scans import Question, rows
from understudy.client.core.stores import info
from understudy.client.core.streaming import MAY_PASS
from understudy.client.errors import BadRequestError, DeadlineError, ForbiddenError, ServerProblemError, problem_error
from understudy_shared.base.errors import UnderstudyError

MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"
ATTEMPTS: Final = 6
"""Number of attempts in a row that bring no rows."""

FIRST_PAUSE_S: Final = 0.25
_READ_BY_PAGES: Final = (ForbiddenError, BadRequestError, *MAY_PASS)
"""Errors of an export that cannot begin, as for a role without that action, or nodes without pyarrow: pages may."""

Deadline = Callable[[], float]
"""A function that returns the deadline of the next request, or of the next bytes of a stream."""


def table(asked: Question, deadline: Deadline, *packages: str) -> Steps[Any]:
    """Return the rows as a table of pyarrow. Raises MissingExtraError, before it asks, for one of these packages."""
    frames = _frames()
    frames.require("pyarrow", *packages)
    batches = (yield from _exported(asked, deadline)) if asked.is_streamed else None
    if batches is not None:
        return frames.table_of(batches)
    schema, found = yield from _rows(asked, deadline)
    return frames.to_arrow(schema, found, asked.fields)


def frame(asked: Question, deadline: Deadline, package: str) -> Steps[Any]:
    """Return the rows as a data frame of that package, `pandas` or `polars`."""
    found = yield from table(asked, deadline, package)
    return getattr(_frames(), f"as_{package}")(found)


def dicts(asked: Question, deadline: Deadline) -> Steps[list[dict[str, Any]]]:
    """Return the rows as dicts by column."""
    schema, found = yield from _rows(asked, deadline)
    listed: list[dict[str, Any]] = _frames().to_dicts(schema, found, asked.fields)
    return listed


def _frames() -> Any:
    return import_module("understudy.typed.frames")  # only those who want tables need it


def _rows(asked: Question, deadline: Deadline) -> Steps[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Return the description of the store, and the rows of all pages."""
    described = yield from info(asked.store, deadline())
    found: list[Mapping[str, Any]] = []
    cursor, left = None, asked.limit
    while left is None or left > 0:
        page = yield from rows(asked, cursor, left, deadline())
        found += [row.raw for row in page.items]
        cursor = page.next_cursor
        left = None if left is None else left - len(page.items)
        if cursor is None:
            break
    return described.schema, found


def _exported(asked: Question, deadline: Deadline) -> Steps[list[Any] | None]:
    """Return the batches of an export; None where it cannot begin."""
    state, cursor, attempts = asked.store.reader.state, None, ATTEMPTS
    batches: list[Any] = []
    while True:
        error: UnderstudyError
        try:
            opened = yield from asked.stream("arrow", MEDIA_TYPE, cursor, deadline())
        except _READ_BY_PAGES as refused:
            if attempts == ATTEMPTS and not batches:
                return None
            if not isinstance(refused, MAY_PASS):
                raise
            error = refused
        else:
            state.position.observe(opened.headers.get("understudy-position"))
            read = _frames().read_export((yield from _received(opened.stream, deadline)))
            batches = [*(batches if cursor else ()), *read.batches]
            if read.why is None:
                return batches
            attempts = ATTEMPTS if read.cursor else attempts
            cursor = read.cursor or cursor
            error = _error_of(read.why)
            if isinstance(error, ServerProblemError) and not isinstance(error, MAY_PASS):
                raise error
        attempts -= 1
        if attempts <= 0:
            what = f"the rows of {asked.store.name} broke off: {error.what}"
            raise DeadlineError(what, (), fix="Ask again, or iterate over the rows") from None
        yield Wait(FIRST_PAUSE_S * 2 ** (ATTEMPTS - attempts - 1))


def _error_of(why: Mapping[str, Any] | UnderstudyError) -> UnderstudyError:
    return why if isinstance(why, UnderstudyError) else problem_error(why, why.get("status", 0))


def _received(stream: Any, deadline: Deadline) -> Steps[bytes]:
    """Return what comes until a stream ends, whole or cut: its records say which."""
    pieces: list[bytes] = []
    try:
        while True:
            piece = yield Receive(stream, deadline())
            if isinstance(piece, Failure) or not piece:
                return b"".join(pieces)
            assert isinstance(piece, bytes)
            pieces.append(piece)
    finally:
        stream.close()  # no step: the call may have been given up
