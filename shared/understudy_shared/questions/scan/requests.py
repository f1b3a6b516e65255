"""The request of a scan or a count, from a query or a JSON object (pure): the same at nodes and routers.

Every problem names the member at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import orjson

from understudy_shared.base.texts import clipped
from understudy_shared.http.lookup_requests import pop_longs
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.lookup.windows import WindowsOf, require_by
from understudy_shared.questions.scan.cursor import decode_scan_cursor
from understudy_shared.questions.scan.question import (
    MAX_FIELDS,
    MAX_ORDER_CHARS,
    MAX_SCAN_ROWS,
    ScanOperation,
    ScanQuestion,
    ScanRequest,
)
from understudy_shared.questions.scan.where import parse_where
from understudy_shared.questions.scan.where_text import parse_where_text
from understudy_shared.reads.bound_parsing import parse_flag
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.export_format import ExportFormat, parse_format

_OWN: Final = (
    *("limit", "cursor", "partition", "prefix", "where", "fields", "explain", "estimate"),
    *("from", "to", "order", "reverse"),
)
_NOT_OF_WINDOWS: Final = ("partition", "prefix", "where", "fields", "order", "reverse", "estimate")
_NOT_OF: Final[Mapping[ScanOperation, tuple[str, ...]]] = {
    "scan": (),
    "count": ("limit", "fields", "longs", "order", "reverse"),
    "windows": (),
    "export": ("limit", "explain", "order", "reverse"),
}
_MAX_PARTITION: Final = 2**31 - 1


def parse_scan(operation: ScanOperation, given: Mapping[str, object]) -> ScanRequest:
    """Parse the members of a request: texts, as a query has them, or JSON. What is not of the scan is of its bound.

    Raises BadBoundError and BadCursorError.
    """
    # Many branches, one for each member: what is wrong is refused in this order, each with its own sentence.
    members = {name: value for name, value in given.items() if value is not None}
    named = f"an {operation}" if operation == "export" else f"a {operation}"
    wrong = next((name for name in _NOT_OF[operation] if name in members), None)
    if wrong is not None:
        raise BadBoundError(f"{named} takes no {wrong}", where=wrong, fix="Leave it out")
    if operation != "count" and "estimate" in members:
        raise BadBoundError(f"{named} takes no estimate", where="estimate", fix="Send it to the count of the store")
    cursor = members.get("cursor")
    question = ScanQuestion(
        operation,
        _whole(members, "partition", 0, _MAX_PARTITION),
        _prefix(members),
        parse_where(_where(members["where"])) if "where" in members else (),
        _fields(members),
        "include_expired" not in members or parse_flag(members, "include_expired"),
        _bound(members, "from"),
        _bound(members, "to"),
        *_order(members),
    )
    is_estimate = parse_flag(members, "estimate")
    if is_estimate and (question.is_filtered or cursor is not None):
        what = "an estimate is of a whole store or partition, and comes at once"
        raise BadBoundError(what, where="estimate", fix="Leave out what selects rows, and cursor, or estimate")
    longs = {name: str(value) for name, value in members.items() if name == "longs"}
    return ScanRequest(
        question,
        _whole(members, "limit", 1, MAX_SCAN_ROWS) or MAX_SCAN_ROWS,
        None if cursor is None else decode_scan_cursor(cursor),
        explain=parse_flag(members, "explain"),
        longs_as_text=pop_longs(longs),
        is_estimate=is_estimate,
        # A bound that is null takes back the store's default; a name that is unknown is refused with any value.
        bounds={name: value for name, value in given.items() if name not in _OWN and name != "longs"},
    )


def parse_windows(given: Mapping[str, object], key: tuple[object, ...]) -> ScanRequest:
    """Parse the members of a request for the windows of a key. Raises BadBoundError and BadCursorError."""
    wrong = next((name for name in _NOT_OF_WINDOWS if name in given), None)
    if wrong is not None:
        known = ", ".join(("from", "to", "by", "limit", "cursor", "explain", "longs"))
        what = f"a question for windows takes no {wrong}"
        raise BadBoundError(what, where=wrong, fix=f"Leave it out; it takes {known}, and bounds")
    by = require_by(given.get("by", "start"))
    asked = parse_scan("scan", {name: value for name, value in given.items() if name != "by"})
    return replace(asked, question=replace(asked.question, operation="windows", windows=WindowsOf(key, by)))


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A request for an export. `has_trailer`: a CSV ends with a comment that says how many rows it has."""

    scan: ScanRequest
    format: ExportFormat
    has_trailer: bool


def parse_export(given: Mapping[str, object], accept: str = "") -> ExportRequest:
    """Parse the members of a request: those of a scan, and the form. Raises as `parse_scan` does."""
    form = parse_format(given.get("format"), accept)
    has_trailer = "trailer" not in given or parse_flag(given, "trailer")
    for name, wanted in (("longs", ExportFormat.NDJSON), ("trailer", ExportFormat.CSV)):
        if given.get(name) is not None and form is not wanted:
            raise BadBoundError(f"{name} is for {wanted}, not for {form}", where=name, fix="Leave it out")
    scanned = {name: value for name, value in given.items() if name not in ("format", "trailer")}
    return ExportRequest(parse_scan("export", scanned), form, has_trailer)


def parse_scan_body(body: bytes) -> dict[str, object]:
    """Parse the JSON object of a POST. Raises a bad-request problem."""
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _bad_body(f"the body is not JSON: {error}") from None
    if not isinstance(members, dict):
        raise _bad_body("the body is not a JSON object")
    return members


def _bad_body(what: str) -> ProblemError:
    fix = 'Send for example {"prefix": ["a"], "limit": 100}'
    return ProblemError(Problem(ProblemType.BAD_REQUEST, what, where="body", fix=fix))


def _json(value: object, name: str) -> object:
    """Return the JSON of a member, which a query has as a text."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise BadBoundError(f"{name} is not JSON: {error}", where=name, fix="Send JSON, percent-encoded") from None


def _where(value: object) -> object:
    """Return the comparisons of a filter as JSON: a text that is not JSON is an expression."""
    is_expression = isinstance(value, str) and value.lstrip()[:1] not in {"[", "{"}
    return parse_where_text(str(value)) if is_expression else _json(value, "where")


def _prefix(members: Mapping[str, object]) -> tuple[object, ...]:
    if "prefix" not in members:
        return ()
    values = _json(members["prefix"], "prefix")
    if isinstance(values, list) and values and _is_printable(values):
        return tuple(values)
    fix = 'Send a JSON array of values for the first key columns, as ["a"]'
    raise BadBoundError(f"the prefix is {clipped(values)}, not an array of values", where="prefix", fix=fix)


def _is_printable(value: object) -> bool:
    """Whether a value can be sent on as JSON: not if it is nested too deeply."""
    try:
        return bool(orjson.dumps([[value]]))
    except TypeError:
        return False


def _bound(members: Mapping[str, object], name: str) -> str | None:
    """Return a bound of the first key column."""
    value = members.get(name)
    if value is None or isinstance(value, str):
        return value
    fix = "Send a value of the first key column as a text, as it is in a path"
    raise BadBoundError(f"{name} is {clipped(value)}, not a text", where=name, fix=fix)


def _order(members: Mapping[str, object]) -> tuple[str | None, bool]:
    """Return the column by which rows are ordered, and whether the order is reversed."""
    order, reverse = members.get("order"), parse_flag(members, "reverse")
    fix = "Send order=key, or the name of a column"
    if order is not None and (not isinstance(order, str) or not 0 < len(order) <= MAX_ORDER_CHARS):
        raise BadBoundError(f"order is {clipped(order)}, not the name of a column", where="order", fix=fix)
    if reverse and order is None:
        raise BadBoundError("reverse is of rows that are ordered", where="reverse", fix=fix)
    return order, reverse


def _fields(members: Mapping[str, object]) -> tuple[str, ...] | None:
    if "fields" not in members:
        return None
    given = members["fields"]
    names = given.split(",") if isinstance(given, str) else given
    if isinstance(names, list) and 0 < len(names) <= MAX_FIELDS and all(isinstance(name, str) for name in names):
        return tuple(names)
    fix = "Send fields=a,b in a query, or a JSON array of names in a body"
    raise BadBoundError(f"fields is {clipped(given)}, not 1 to {MAX_FIELDS} names of columns", where="fields", fix=fix)


def _whole(members: Mapping[str, object], name: str, low: int, high: int) -> int | None:
    """Return a whole number within limits; None where it is not given."""
    value = members.get(name)
    if value is None:
        return None
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else value
    if isinstance(number, float) and number.is_integer():  # some JSON writers write every number as 5.0
        number = int(number)
    if type(number) is int and low <= number <= high:
        return number
    what = f"{name}={clipped(value)} is not a whole number from {low} to {high}"
    raise BadBoundError(what, where=name, fix=f"Send for example {name}={max(low, 1)}, or leave it out")
