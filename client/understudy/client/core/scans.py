"""Scans, counts, windows and histories (pure): a request for each page and what comes of it, or all rows at once.

Rule. A table has every row once, of one version: an export that is cut is resumed after its last cursor, or read again
from its beginning, and ends in a table only with the record of its end. Where no export has the rows, pages bring them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from importlib import import_module
from typing import Any, Final

import orjson

from understudy.client.core.call import call, require
from understudy.client.core.exchange import Failure, Opened, Receive, Request, Steps, Wait
from understudy.client.core.lookups import info
from understudy.client.core.reader import BoundStore
from understudy.client.core.streaming import MAY_PASS
from understudy.client.core.values import QUESTION, VERSIONS, json_value, key_form, query_of
from understudy.client.errors import (
    BadRequestError,
    DeadlineError,
    ForbiddenError,
    ServerProblemError,
    UsageError,
    problem_error,
)
from understudy.client.pages import Count, KeyVersion, Page, Row, Window
from understudy.client.results import Binding
from understudy_shared.base.errors import UnderstudyError

_OF_LATER_PAGES: Final = frozenset((*VERSIONS, "include_expired"))
"""The bounds that are sent with a cursor: the others chose the version of the first page."""

MAX_PAGE_ITEMS: Final = 1000
"""Rows or windows of one request: the server's limit."""

_NOT_EXPORTED: Final = frozenset(("order", "reverse", "explain"))
_IN_PAGES: Final = ("scan", "windows")


class Question:
    """The query of a scan, a count or windows; each page is one request."""

    def __init__(
        self, store: BoundStore, action: str, given: Mapping[str, Any], parts: Sequence[Any] | None = None
    ) -> None:
        """Check what is asked. `parts` is the key whose windows are wanted. Raises UsageError."""
        self.store, self._action, self._parts = store, action, parts
        self._members = {QUESTION[name]: _member(name, given[name]) for name in given if name in QUESTION}
        self._bounds = {name: value for name, value in given.items() if name not in QUESTION}
        self.limit: int | None = None
        """The number of items of all pages together."""
        self._page_size: int | None = None
        if action in _IN_PAGES:
            self.limit = _whole("limit", self._bounds.pop("limit", None))
            self._page_size = _whole("page_size", self._bounds.pop("page_size", None))
        store.reader.bounds(self._bounds)

    def page(
        self, cursor: str | None, deadline_s: float, left: int | None = None
    ) -> Steps[tuple[dict[str, Any], Binding | None]]:
        """Ask for the page after a cursor, or the first one, with at most as many items as are left."""
        binding = yield from self.store.binding(deadline_s)
        given = self.store.reader.bounds(self._bounds)
        bounds = {name: "none" if value is None else value for name, value in given.members.items()}
        session = given.session
        if cursor is not None:
            bounds = {name: value for name, value in bounds.items() if name in _OF_LATER_PAGES} | {"cursor": cursor}
            session = None
        if left is not None or self._page_size is not None:
            is_top = left is not None and "order" in self._members  # each page of an order reads every key again
            size = MAX_PAGE_ITEMS if is_top else self._page_size or MAX_PAGE_ITEMS
            bounds["limit"] = size if left is None else min(left, size)
        parts = None if self._parts is None else self.store.key(binding, self._parts)
        if parts is not None:
            parts = yield from self.store.exact(parts, deadline_s, self._action)
        request = self._request({**self._members, **bounds}, parts, given.wait_s)
        answer = yield from self.store.read(request, session, deadline_s)
        if parts is not None:
            yield from self.store.check_key(parts, answer.get("key"), deadline_s, self._action)
        require("next_cursor" in answer or "is_estimate" in answer, "a page has no next_cursor")
        self.store.reader.state.position.observe(answer.get("position"))
        return answer, binding

    @property
    def fields(self) -> Sequence[str] | None:
        return self._members.get("fields")

    @property
    def is_streamed(self) -> bool:
        """Whether an export has the rows of this scan."""
        return self.limit is None and "cursor" not in self._bounds and not self._members.keys() & _NOT_EXPORTED

    def stream(self, form: str, media_type: str, cursor: str | None, deadline_s: float) -> Steps[Opened]:
        """Ask for all rows as one stream, from the beginning or after a cursor of an earlier one."""
        given = self.store.reader.bounds(self._bounds)
        members = {**self._members, **given.members, "format": form, **({} if cursor is None else {"cursor": cursor})}
        request = Request("POST", f"{self.store.path}/export", orjson.dumps(members), given.wait_s, (media_type,))
        opened: Opened = yield from call(self.store.reader.state, request, deadline_s)
        return opened

    def _request(self, members: Mapping[str, Any], parts: Sequence[Any] | None, wait_s: float) -> Request:
        if self._action == "scan":
            return Request("POST", f"{self.store.path}/scan", orjson.dumps(members), wait_s)
        if parts is None:
            return Request("GET", f"{self.store.path}/{self._action}{query_of(members)}", None, wait_s)
        target, has_query = key_form(self._action, parts)
        return Request("GET", f"{self.store.path}/{target}{query_of(members, begun=has_query)}", None, wait_s)


def rows(question: Question, cursor: str | None, left: int | None, deadline_s: float) -> Steps[Page[Row[Any]]]:
    """Return a page of rows."""
    answer, binding = yield from question.page(cursor, deadline_s, left)
    found = _items(answer, "rows", "key")
    return Page(answer, [Row(row, binding, _error(row)) for row in found])


def windows(question: Question, cursor: str | None, left: int | None, deadline_s: float) -> Steps[Page[Window[Any]]]:
    """Return a page of windows."""
    answer, binding = yield from question.page(cursor, deadline_s, left)
    found = _items(answer, "windows", "start")
    return Page(answer, [Window(window, binding, _error(window)) for window in found])


def count(question: Question, deadline_s: float) -> Steps[Count]:
    """Count rows, page after page until the number is exact."""
    cursor: str | None = None
    while True:
        answer, _ = yield from question.page(cursor, deadline_s)
        require(type(answer.get("count")) is int, "it has no count")
        cursor = answer.get("next_cursor")
        if cursor is None:
            is_estimate = answer.get("is_estimate", False)
            return Count(answer["count"], answer.get("version"), answer.get("position"), is_estimate)


class HistorySpan:
    """The wanted versions of a key, both inclusive; each page is one request."""

    def __init__(
        self, store: BoundStore, parts: Sequence[Any], last: int | None, *, include_expired: bool | None
    ) -> None:
        if store.reader.named:
            what = "a history is of many versions, and these reads are of one"
            raise UsageError(what, where="history", fix="Ask the client's own store for it")
        self.store, self._parts = store, parts
        self._members = {} if last is None else {"to": last}
        self._members |= {} if include_expired is None else {"include_expired": include_expired}

    def page(self, first: int | None, deadline_s: float) -> Steps[tuple[list[KeyVersion[Any]], int | None]]:
        """Return the versions of a page, and the first version of the next one."""
        binding = yield from self.store.binding(deadline_s)
        members = self._members if first is None else {"from": first, **self._members}
        parts = yield from self.store.exact(self.store.key(binding, self._parts), deadline_s)
        target, has_query = key_form("history", parts)
        request = Request("GET", f"{self.store.path}/{target}{query_of(members, begun=has_query)}")
        answer = yield from self.store.read(request, None, deadline_s)
        found = _items(answer, "versions", "version")
        require("next_from" in answer, "a page has no next_from")
        key = answer.get("key")
        yield from self.store.check_key(parts, key, deadline_s)
        return [KeyVersion({"key": key, **each}, binding) for each in found], answer["next_from"]


def _whole(name: str, value: Any) -> int | None:
    if value is None or (type(value) is int and value > 0):
        return value
    raise UsageError(f"{name}={value!r} is not a number of items", where=name, fix=f"Give {name}=100, or leave it out")


def _member(name: str, value: Any) -> Any:
    if name in ("start", "end"):
        return value if isinstance(value, str) else _as_text(name, value)
    return json_value(value)


def _as_text(name: str, value: Any) -> str:
    """Return a bound of the first key column as it stands in a path."""
    if isinstance(value, (int, float, Decimal, date, datetime)) and not isinstance(value, bool):
        return str(json_value(value))
    raise UsageError(f"{name}={value!r} is not the bound of a range", where=name, fix="Give a text, a number or a time")


def _items(answer: Mapping[str, Any], name: str, member: str) -> list[dict[str, Any]]:
    """Return the items of a page. Raises BadReplyError where an item lacks what each has."""
    found: list[dict[str, Any]] = answer.get(name, [])
    is_list = name in answer and isinstance(found, list)
    require(is_list and all(isinstance(each, dict) and member in each for each in found), f"a page has no {name}")
    return found


def _error(row: Mapping[str, Any]) -> Any:
    problem = row.get("problem")
    return None if problem is None else problem_error(problem, problem.get("status", 0))


MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"
ATTEMPTS: Final = 6
"""Number of attempts in a row that bring no rows."""

FIRST_PAUSE_S: Final = 0.25
_READ_BY_PAGES: Final = (ForbiddenError, BadRequestError, *MAY_PASS)
"""Errors of an export that cannot begin, as for a role without that action, or nodes without pyarrow; pages may work.
"""

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
