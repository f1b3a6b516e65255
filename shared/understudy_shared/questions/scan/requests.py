"""The request of a scan, the same at nodes and routers (pure). It is parsed from a query or a JSON object; then it is
checked: which partitions it reads, whether its principal may read them, and whether its cursor fits. Every problem
names the faulty member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Final

import orjson

from understudy_shared.auth.permissions import require_key
from understudy_shared.auth.principals import Authorization
from understudy_shared.base.errors import BadKeyError
from understudy_shared.base.texts import clipped
from understudy_shared.base.words import StoreKind
from understudy_shared.http.lookup_requests import pop_longs
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.lookup.windows import WindowsOf, require_by, window_key
from understudy_shared.questions.scan.question import (
    MAX_FIELDS,
    MAX_ORDER_CHARS,
    MAX_SCAN_ROWS,
    ScanCursor,
    ScanOperation,
    ScanQuestion,
    ScanRequest,
    decode_scan_cursor,
)
from understudy_shared.questions.scan.where import parse_where, parse_where_text
from understudy_shared.reads.bound_parsing import parse_flag
from understudy_shared.reads.bounds import BadBoundError, Bound
from understudy_shared.reads.export_format import ExportFormat, parse_format
from understudy_shared.reads.tokens import BadCursorError
from understudy_shared.spark.key_codec import ANY_PARTITION, KeyCodec, Row
from understudy_shared.spark.store_keys import WHOLE_MAP, MapKeyCodec
from understudy_shared.spark.types import DoubleType, FloatType, StructType
from understudy_shared.spark.unsafe_row import bitmap_words, fixed_bytes, fixed_code

MAX_CODECS = 256
"""Number of compiled codecs of prefixes."""

MAX_LATER_COLUMNS = 6
"""Limit on the columns after a prefix for which keys are sought. Each may be null, whatever the schema says, and
doubles the number of seeks.
"""


@dataclass(frozen=True, slots=True)
class RowStarts:
    """The possible beginnings of key rows with a prefix, in the order of their bytes. `row_bytes` is the size of such a
    row; None if it depends on the other columns.
    """

    starts: tuple[bytes, ...]
    row_bytes: int | None


@dataclass(frozen=True, slots=True)
class KeyPrefix:
    """Values of leading key columns, parsed like a key. `printed` has the columns as answers print them.

    A prefix of all columns is a key: `whole` is the encoded key, `partition` its partition. For fewer columns, `rows`
    has the beginnings of their rows; None if rows of other keys lie between them.
    """

    printed: dict[str, object]
    matches: Callable[[Row], bool]
    whole: bytes | None
    partition: int | None
    rows: RowStarts | None = None

    def may_be_in(self, partition: int) -> bool:
        """Whether the key of a prefix with all columns may be in a partition."""
        return self.partition in {partition, ANY_PARTITION}


def row_columns(codec: KeyCodec) -> int:
    """Return the number of key columns in a row of a scan."""
    return codec.num_hash_columns if isinstance(codec, MapKeyCodec) else len(codec.names)


def parse_prefix(codec: KeyCodec, values: Sequence[object], partitions: int) -> KeyPrefix:
    """Parse a prefix, given as JSON values. Raises BadBoundError that names the column."""
    count, columns = len(values), row_columns(codec)
    if not 0 < count <= columns:
        names = ", ".join(codec.names[:columns])
        raise BadBoundError(
            f"the prefix has {count} values, and the key has {columns} columns ({names})",
            where="prefix",
            fix=f"Send a JSON array of values for the first columns, from 1 to {columns}",
        )
    leading = _codec_of(codec.key, codec.names, codec.is_normalised, count)
    try:
        row = leading.parse_json(list(values))
    except BadKeyError as error:
        raise BadBoundError(error.what, where=f"prefix, {error.where}", fix=error.fix) from None
    encoded = leading.encode(row)
    printed = leading.to_json(encoded)
    has_floats = any(word in leading.key.name for word in ("float", "double"))

    def matches(whole: Row) -> bool:
        # Floats are compared by bytes, because NaN is not equal to itself.
        return leading.encode(whole[:count]) == encoded if has_floats else whole[:count] == row

    if count < columns:
        whole = StructType(codec.key.fields[:columns])
        return KeyPrefix(printed, matches, None, None, _row_starts(whole, count, encoded))
    key = encoded + WHOLE_MAP if isinstance(codec, MapKeyCodec) else encoded
    return KeyPrefix(printed, matches, key, codec.partition(row, partitions))


@lru_cache(MAX_CODECS)
def _codec_of(key: StructType, names: tuple[str, ...], is_normalised: bool, count: int) -> KeyCodec:
    return KeyCodec(StructType(key.fields[:count]), names=names[:count], is_normalised=is_normalised)


def _row_starts(key: StructType, count: int, encoded: bytes) -> RowStarts | None:
    """Return the possible beginnings of rows of `key` whose first `count` columns equal those of an encoded row.

    A row has null bits, then a slot for each column, then the values that are too long for a slot. If all values of a
    prefix are in slots, its rows lie together: in one range for each combination of nulls in later columns. Prefixes
    with floats are left out: a set may have a key with -0.0 beside one with 0.0.
    """
    leading, later = key.fields[:count], key.fields[count:]
    if any(fixed_code(each.type) is None or isinstance(each.type, (FloatType, DoubleType)) for each in leading):
        return None
    if len(later) > MAX_LATER_COLUMNS:
        return None
    slots_at = 8 * bitmap_words(count)
    bits = int.from_bytes(encoded[:slots_at], "little")
    width = 8 * bitmap_words(len(key.fields))
    starts = [
        (bits | sum(1 << at for at in nulls)).to_bytes(width, "little") + encoded[slots_at:]
        for size in range(len(later) + 1)
        for nulls in combinations(range(count, len(key.fields)), size)
    ]
    is_fixed = all(fixed_code(each.type) is not None for each in later)
    return RowStarts(tuple(sorted(starts)), fixed_bytes(key) if is_fixed else None)


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
    """Parse the members of a request, which are texts from a query, or JSON. Members of no scan belong to its bound.

    Raises BadBoundError and BadCursorError.
    """
    # Many branches, one for each member: faults are refused in this order, each with its own text.
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
        # A null bound removes the store's default. An unknown name is refused whatever its value.
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
    """Parse the members of a request: those of a scan, and the format. Raises the errors of `parse_scan`."""
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
    """Return the JSON value of a member. A query has it as a text."""
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
    """Whether a value can be passed on as JSON. It cannot if it is nested too deeply."""
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


@dataclass(frozen=True, slots=True)
class ScannedStore:
    """A store that is scanned. `partitions` is the number of its partitions; `held` are the ones that are read here."""

    name: str
    kind: str
    application_id: str
    lineage: str
    codec: KeyCodec
    partitions: int
    held: Sequence[int]


@dataclass(frozen=True, slots=True)
class ScanTurn:
    """A parsed and granted request for a page. `partitions` are the partitions to scan; `digest` and `prefix` belong to
    its question. `is_confined`: the client must not learn where other keys are. `is_watch`: it is read for a watch of a
    prefix.
    """

    store: ScannedStore
    asked: ScanRequest
    bound: Bound
    partitions: Sequence[int]
    digest: str
    is_confined: bool
    prefix: KeyPrefix | None = None
    is_watch: bool = False

    @property
    def is_ordered(self) -> bool:
        """Whether the rows of all partitions are merged in one order. Timers in a range are ordered by their times."""
        question = self.asked.question
        of_times = self.store.kind == StoreKind.TIMERS and question.has_range and not self.is_count
        return question.is_ordered or of_times

    @property
    def is_count(self) -> bool:
        return self.asked.question.operation == "count"


def scan_turn(store: ScannedStore, asked: ScanRequest, bound: Bound, authorization: Authorization) -> ScanTurn:
    """Check that a request is granted and its cursor fits, before anything is read. Raises its problem."""
    question, include_expired = asked.question, bound.selection.include_expired
    if question.include_expired != include_expired:
        question = replace(question, include_expired=include_expired)
        asked = replace(asked, question=question)
    leading = question.prefix
    prefix = parse_prefix(store.codec, leading, store.partitions) if leading else None
    is_confined = authorization.keys.prefixes is not None
    if question.windows is not None:
        partitions = _of_windows(store, question.windows, authorization)
    else:
        if is_confined:
            require_key(authorization, {} if prefix is None else prefix.printed)
        partitions = _partitions(store, question, prefix)
    # A node whose partitions have changed cannot resume a scan.
    held = "" if len(store.held) == store.partitions else repr(tuple(store.held))
    digest = question.digest(f"{authorization.principal.name} {held}")
    if asked.cursor is not None:
        asked.cursor.require_of(store.application_id, store.lineage, store.name, digest)
        _require_place(asked.cursor, partitions, bound)
    return ScanTurn(store, asked, bound, partitions, digest, is_confined, prefix)


def _of_windows(store: ScannedStore, asked: WindowsOf, authorization: Authorization) -> Sequence[int]:
    """Return the partitions in which the windows of a key may be. Raises a problem if the key is not granted."""
    key = window_key(store.codec, store.kind)
    row = key.codec.parse_json(list(asked.key))
    if authorization.keys.prefixes is not None:
        require_key(authorization, key.leading(key.codec.to_json(key.codec.encode(row))))
    if store.codec.is_scattered:
        return _everywhere(store)
    return (store.codec.partition(row, store.partitions),) if key.at is None else _held(store)


def _require_place(cursor: ScanCursor, partitions: Sequence[int], bound: Bound) -> None:
    """Raise BadCursorError for a cursor for another partition or version."""
    if cursor.partition not in partitions:
        what = f"the cursor is of partition {cursor.partition}, which is not among those of the scan"
        raise BadCursorError(what, where="cursor", fix="Begin again without one")
    named = bound.read_version
    if named is not None and named.number != cursor.version:
        what = f"the cursor is of version {cursor.version}, and version {named.number} is asked for"
        raise BadCursorError(what, where="cursor", fix="Go on with the version of the first page")


def _partitions(store: ScannedStore, question: ScanQuestion, prefix: KeyPrefix | None) -> Sequence[int]:
    """Return the partitions to scan: the one that the question names, else the one of its key, else all held here."""
    named = question.partition
    if named is not None and named >= store.partitions:
        what = f"there is no partition {named}: the store has {store.partitions}"
        raise BadBoundError(what, where="partition", fix=f"Send a number from 0 to {store.partitions - 1}")
    if named is not None:
        return (named,)
    if prefix is not None and prefix.partition is not None:
        return _everywhere(store) if prefix.partition == ANY_PARTITION else (prefix.partition,)
    return _held(store)


def _everywhere(store: ScannedStore) -> Sequence[int]:
    """Return all partitions, for a key whose partition is unknown. Raises a problem if this node does not hold all."""
    if len(store.held) < store.partitions:
        what = (
            f"a key of {store.name} may be in any of its {store.partitions} partitions, of which this node lacks some"
        )
        raise ProblemError(Problem(ProblemType.NOT_OWNER, what, fix="Ask a router"))
    return store.held


def _held(store: ScannedStore) -> Sequence[int]:
    if not store.held:
        what = f"this node holds no partition of {store.name}"
        raise ProblemError(Problem(ProblemType.NOT_OWNER, what, fix="Ask a router"))
    return store.held
