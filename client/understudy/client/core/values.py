"""Python values as the API's JSON: keys, bounds and what selects rows (pure)."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, TypedDict
from urllib.parse import quote, urlencode

import orjson

from understudy.client.errors import UsageError
from understudy_shared.base.texts import clipped, parse_ago
from understudy_shared.reads.bounds import WAIT_WITH_POSITION_MS

MAX_TARGET_CHARS = 6000
"""A longer key goes into a body: most proxies take targets of 8 KiB."""

_MAX_LONG = 2**63

Since = datetime | timedelta | str
"""A time: with a zone, or ago, as `timedelta(minutes=1)` or `"1m"`."""


class Bounds(TypedDict, total=False):
    """The bounds of a read. One that is None takes back the default that the server has for the store."""

    max_staleness: timedelta | None
    max_lag: int | None
    min_position: str | None
    require_active: bool
    unknown_lag: Literal["serve", "refuse"] | None
    wait: timedelta
    version: int
    snapshot: str
    at: datetime | timedelta | str | int
    limit: int | None
    cursor: str
    include_expired: bool | None


class CountQuestion(Bounds, total=False):
    """The rows that are counted, and bounds. `start` and `end` are the range of the first key column."""

    prefix: Sequence[Any]
    where: str | Sequence[Sequence[Any]]
    partition: int
    start: Any
    end: Any


class RowsQuestion(CountQuestion, total=False):
    """The rows of a scan, and bounds. `limit` is the number of rows, all by default; `page_size` those of a request."""

    page_size: int | None
    fields: Sequence[str]
    order: str
    reverse: bool
    explain: bool


class WindowQuestion(Bounds, total=False):
    """The windows of a key, and bounds: those that start, or overlap, in a range of time. `limit` is their number, all
    by default; `page_size` those of a request.
    """

    page_size: int | None
    start: datetime | str
    end: datetime | str
    by: Literal["start", "overlap"]
    explain: bool


class SnapshotBounds(TypedDict, total=False):
    """The version that is leased: by default the newest that all tasks show."""

    version: int
    snapshot: str
    at: datetime | str | int
    min_position: str
    wait: timedelta


QUESTION = {
    **{
        name: name
        for name in ("prefix", "where", "partition", "fields", "order", "reverse", "explain", "by", "estimate")
    },
    "start": "from",
    "end": "to",
}
"""The members of questions, by their names in Python."""

_MILLISECONDS = {"max_staleness": "max_staleness_ms", "wait": "wait_ms"}
VERSIONS = ("version", "snapshot", "at")


def bound_members(bounds: Mapping[str, Any], session: str | None = None) -> dict[str, Any]:
    """Return bounds as JSON. `session` is a position that counts unless the bounds name a version or a position.

    Raises UsageError.
    """
    members: dict[str, Any] = {}
    for name, value in bounds.items():
        if name in _MILLISECONDS:
            members[_MILLISECONDS[name]] = None if value is None else _milliseconds(name, value)
        elif name == "at":
            members[name] = json_value(value) if isinstance(value, (str, int)) else _moment(value)
        elif name in Bounds.__annotations__:
            members[name] = value
        else:
            known = ", ".join(Bounds.__annotations__)
            raise UsageError(f"a read takes no {name}", where=name, fix=f"Known bounds: {known}")
    if session is not None and not any(name in members for name in ("min_position", "cursor", *VERSIONS)):
        members["min_position"] = session
    return members


class SinceTime:
    """A time since which versions are wanted. Raises UsageError for what is not a time."""

    def __init__(self, since: Since) -> None:
        self._text: str = bound_members({"at": since})["at"]
        self._ago_us = parse_ago(self._text) if isinstance(self._text, str) else None

    def as_of(self, elapsed_s: float) -> str:
        """Return the time to ask for, some time after the first request: a minute ago then is longer ago now."""
        if self._ago_us is None:
            return self._text
        return f"{self._ago_us // 1000 + math.ceil(elapsed_s * 1000)}ms"


def wait_s(members: Mapping[str, Any]) -> float:
    """Return how long the server may wait by these bounds, which are JSON."""
    waits = not members.keys().isdisjoint(("min_position", *VERSIONS))
    milliseconds: int | None = members.get("wait_ms")
    if milliseconds is None:
        milliseconds = WAIT_WITH_POSITION_MS if waits else 0
    return milliseconds / 1000


def query_of(members: Mapping[str, Any], *, begun: bool = False) -> str:
    """Return members as a query, with the mark before it; "" without any. `begun`: the target has a query already."""
    if not members:
        return ""
    return f"{'&' if begun else '?'}{urlencode({name: _text(value) for name, value in members.items()})}"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else orjson.dumps(value).decode()


def _milliseconds(name: str, value: Any) -> int:
    if isinstance(value, timedelta) and value >= timedelta():
        return math.ceil(value / timedelta(milliseconds=1))
    raise UsageError(f"{name}={value!r} is not a time", where=name, fix=f"Give {name}=timedelta(seconds=5)")


def _moment(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"-{_milliseconds('at', value)}ms"
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.isoformat()
    fix = "Give a datetime with a time zone, milliseconds since 1970, or a time ago, as '1m'"
    raise UsageError(f"at={value!r} is not a moment", where="at", fix=fix)


def json_value(value: Any) -> Any:
    """Return a Python value as the API writes it. Raises UsageError for what has no such form."""
    # One branch for each type. The order matters: a bool is an int, a datetime is a date, and keys are mostly texts.
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if -_MAX_LONG <= value < _MAX_LONG else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        if all(isinstance(name, str) for name in value):
            return {name: json_value(inner) for name, inner in value.items()}
        return [[json_value(name), json_value(inner)] for name, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return [json_value(inner) for inner in value]
    what = f"a {type(value).__name__} has no form in a key"
    raise UsageError(what, where="key", fix="Give texts, numbers, dates, times, bytes, lists and mappings")


def key_json(key: Any) -> Any:
    """Return one key of a batch: a mapping by column, a sequence in the order of columns, or the value of the only
    column.
    """
    value = json_value(key)
    return value if isinstance(value, (list, dict)) else [value]


def keys_json(keys: Sequence[Any]) -> list[Any]:
    """Return the keys of a batch."""
    return [[key] if type(key) is str else key_json(key) for key in keys]


def key_target(parts: Sequence[Any]) -> tuple[str, bool]:
    """Return the end of a lookup's target, and whether it has a query.

    Texts and whole numbers that no proxy rewrites are segments of the path; other keys are JSON in the query.
    """
    if are_plain(parts):
        return "keys/" + "/".join([quote(str(part), safe="") for part in parts]), False
    try:
        text = orjson.dumps(json_of(parts)).decode()
    except orjson.JSONEncodeError:
        what = f"{clipped(parts)} cannot be encoded as UTF-8"
        raise UsageError(what, where="key", fix="Give valid Unicode") from None
    return f"lookup?key={quote(exact_text(text), safe='')}", True


_PLAIN = re.compile(r"[A-Za-z0-9_~:.-]+")
"""Texts that arrive in a path as they are, however often it is decoded, encoded and normalised on its way; but `.` and
`..`, which are folders there.
"""


def are_plain(parts: Sequence[Any]) -> bool:
    """Whether a key is sent as segments of the path."""
    for part in parts:
        if type(part) is str:
            if not (part.isalnum() and part.isascii()) and (not _PLAIN.fullmatch(part) or part in (".", "..")):
                return False
        elif type(part) is not int:
            return False
    return bool(parts)


def are_segments(parts: Sequence[Any]) -> bool:
    """Whether a key is texts and whole numbers, which a server reads by the types of its columns."""
    for part in parts:
        if type(part) is not int and (type(part) is not str or not part):
            return False
    return bool(parts)


def exact_text(text: str) -> str:
    """Return a JSON text with the same value which a query carries even where a proxy decodes it once too often.

    What means something in a query (`%`, `+`, `&`, `;`, `#`, blanks), and all but ASCII, is an escape of JSON.
    """
    return _TOKENS.sub(lambda found: _TOUCHED.sub(_escaped, found[0]) if found[0].startswith('"') else "", text)


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\r\n+]+')
"""Strings of a JSON text; and between them blanks, and the plus of an exponent, which can be left out."""

_TOUCHED = re.compile("[^!-~]|[%+&;#]")


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def json_of(parts: Sequence[Any]) -> Any:
    """Return a key as JSON: a mapping by column, or a value for each column."""
    return json_value(parts[0] if len(parts) == 1 and isinstance(parts[0], Mapping) else list(parts))


def parts_of(key: Any) -> Sequence[Any]:
    """Return the parts of a key of a batch, which is JSON."""
    return key if isinstance(key, list) else [key]


def is_printed(asked: Any, answered: Mapping[str, Any]) -> bool:
    """Whether a key in an answer is exactly as it was sent: its values in order, or a mapping by column."""
    return answered == asked if isinstance(asked, dict) else [*answered.values()] == [*asked]


def key_form(action: str, parts: Sequence[Any]) -> tuple[str, bool]:
    """Return the same for calls that have the key after their name: `windows`, `history`."""
    target, has_query = key_target(parts)
    return target.replace("lookup" if has_query else "keys", action, 1), has_query


def _segment(name: str) -> str:
    """Quote a name so that it arrives as it is: dots too, which clients and proxies resolve as folders."""
    try:
        return {".": "%2E", "..": "%2E%2E"}.get(name) or quote(name, safe="")
    except UnicodeEncodeError:
        raise UsageError(
            f"{name!r} is not valid text: it cannot be encoded", where="name", fix="Give valid Unicode"
        ) from None


def application_segment(application: str) -> str:
    """Return an application as a segment of a path. Raises UsageError."""
    if not isinstance(application, str) or not application or "/" in application:
        what = f"{application!r} does not name an application"
        raise UsageError(what, where="application", fix="understudy applications lists their names")
    return _segment(application)


def store_path(store: str) -> str:
    """Return the path of a store. Raises UsageError."""
    if not isinstance(store, str) or not store or "/" in store:
        raise UsageError(f"{store!r} does not name a store", where="store", fix="Client.stores() lists their names")
    return f"/v1/stores/{_segment(store)}"
