"""The columns of a scan: the filter, whose comparisons must all hold, and the order by columns (pure).

Values compare as Spark compares them: null never matches a comparison, NaN is equal to itself and greater than every
other number, -0.0 is 0.0, strings compare by their UTF-8 bytes. In an order nulls come first, as in Spark's ORDER BY.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.base.errors import BadKeyError
from understudy_shared.base.texts import clipped
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.columns import Columns, StoreColumn
from understudy_shared.spark.json_values import compile_json_parser, compile_segment_parser, example_of, is_scalar
from understudy_shared.spark.types import (
    BINARY_COLLATION,
    BinaryType,
    CalendarIntervalType,
    DecimalType,
    DoubleType,
    Field,
    FloatType,
    SparkType,
    StringType,
    StructType,
    VoidType,
)
from understudy_shared.spark.unsafe_row import unscaled_of

MAX_TERMS: Final = 32
MAX_WHERE_BYTES: Final = 8 * 1024
"""Limit on a filter as JSON. It is sent in URLs, and evaluated for each row."""

WHERE: Final = "where"
FROM: Final = "from"
TO: Final = "to"
_FORM: Final = 'Send [["column", "<", value], ...] as JSON; operators are = != < <= > >= in is_null not_null'

Matches = Callable[[Any], bool]
"""A function that says whether a typed value matches."""

Order = Callable[[Any], Any]
"""A function that converts a value to one that Python compares in Spark's order."""

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NULLS: Final[Mapping[str, Matches]] = {
    "is_null": lambda value: value is None,
    "not_null": lambda value: value is not None,
}


class RawTerm(NamedTuple):
    """A comparison as the client sent it. `literal` is parsed JSON; None for an operator without a value."""

    column: str
    op: str
    literal: object

    def form(self) -> list[object]:
        """Return it as the JSON that `parse_where` takes."""
        return [self.column, self.op] if self.op in _NULLS else [*self]


class Term(NamedTuple):
    """A comparison of a column. `matches` takes its decoded value."""

    column: StoreColumn
    matches: Matches


def parse_where(value: object) -> tuple[RawTerm, ...]:
    """Check the form of a filter, which is parsed JSON. Raises BadBoundError."""
    if not isinstance(value, list):
        raise BadBoundError(f"where is {clipped(value)}, not a list of comparisons", where=WHERE, fix=_FORM)
    if len(value) > MAX_TERMS:
        raise BadBoundError(f"where has {len(value)} comparisons, above {MAX_TERMS}", where=WHERE, fix="Send fewer")
    try:
        size_bytes = len(orjson.dumps(value))
    except TypeError:
        raise BadBoundError("where is nested too deeply", where=WHERE, fix=_FORM) from None
    if size_bytes > MAX_WHERE_BYTES:
        what = f"where has {size_bytes} bytes, above {MAX_WHERE_BYTES}"
        raise BadBoundError(what, where=WHERE, fix="Send a shorter one")
    return tuple(_raw_term(each) for each in value)


def _raw_term(value: object) -> RawTerm:
    match value:
        case [str(column), str(op)] if op in _NULLS:
            return RawTerm(column, op, None)
        case [str(column), str(op), literal] if op in _COMPARE or op == "in":
            return RawTerm(column, op, literal)
        case [str(column), str(op), *_]:
            takes = "no value" if op in _NULLS else "one value"
            known = op in _NULLS or op in _COMPARE or op == "in"
            what = f"the operator {op} takes {takes}" if known else f"{clipped(op)} is not an operator"
            raise BadBoundError(what, where=f"{WHERE}, the comparison of {clipped(column)}", fix=_FORM)
        case _:
            raise BadBoundError(f"{clipped(value)} is not a comparison", where=WHERE, fix=_FORM)


def compile_where(terms: Sequence[RawTerm], columns: Columns) -> tuple[Term, ...]:
    """Compile a filter for the columns of a store. Raises BadBoundError that names the column."""
    return tuple(_term(each, columns.find(each.column, WHERE)) for each in terms)


def compile_range(column: StoreColumn, low: str | None, high: str | None) -> tuple[Term, ...]:
    """Compile the range of a column from `low` to before `high`; None: without that bound. A bound is a text, as in a
    path. Raises BadBoundError.
    """
    order = order_of(column.type)
    if order is None:
        raise BadBoundError(f"values of {column} are not compared", where=FROM, fix="Leave out from and to")
    compared: dict[str, Any] = {
        name: order(_parsed_bound(column, name, bound))
        for name, bound in ((FROM, low), (TO, high))
        if bound is not None
    }
    first, end = compared.get(FROM), compared.get(TO)
    if first is not None and end is not None and first >= end:
        what = f"from={clipped(low)} is not before to={clipped(high)}, which is not in the range"
        raise BadBoundError(what, where=FROM, fix="Send the end of the range as to")
    terms = []
    if FROM in compared:
        terms.append(Term(column, lambda value: value is not None and order(value) >= first))
    if TO in compared:
        terms.append(Term(column, lambda value: value is not None and order(value) < end))
    return tuple(terms)


def compile_window_range(
    start: StoreColumn, end: StoreColumn, low: str | None, high: str | None, *, is_overlap: bool
) -> tuple[Term, ...]:
    """Compile a range of windows, each from `start` to before `end`: the range of their starts, or with `is_overlap`
    all windows that overlap the range. Raises BadBoundError.
    """
    of_starts = compile_range(start, low, high)
    if not is_overlap:
        return of_starts
    before = compile_range(start, None, high)
    return before if low is None else (*before, _term(RawTerm(".".join(end.path), ">", low), end))


def _parsed_bound(column: StoreColumn, name: str, bound: str) -> object:
    if not bound and isinstance(column.type, StringType):
        return bound  # a path has no empty segment, but the empty text is a key
    try:
        return compile_segment_parser(column.type, ".".join(column.path))(bound)
    except BadKeyError as error:
        raise BadBoundError(error.what, where=f"{name}, {error.where}", fix=error.fix) from None


def _term(term: RawTerm, column: StoreColumn) -> Term:
    if term.op in _NULLS:
        return Term(column, _NULLS[term.op])
    order = order_of(column.type)
    if order is None:
        fix = "Send is_null or not_null, or another column"
        raise BadBoundError(f"values of {column} are not compared", where=WHERE, fix=fix)
    if term.op == "in":
        if not isinstance(term.literal, list) or not term.literal:
            raise _unfit(column, term, "the operator in takes a list of values")
        wanted = {order(_parsed(column, term, each)) for each in term.literal}
        return Term(column, lambda value: value is not None and order(value) in wanted)
    compare, literal = _COMPARE[term.op], order(_parsed(column, term, term.literal))
    return Term(column, lambda value: value is not None and compare(order(value), literal))


def _parsed(column: StoreColumn, term: RawTerm, literal: object) -> object:
    """Parse a value like that of a key."""
    if literal is None:
        raise _unfit(column, term, "null is not compared: send is_null or not_null")
    name = ".".join(column.path)
    try:
        return compile_json_parser(StructType((Field(name, column.type),)), (name,))([literal])[0]
    except BadKeyError as error:
        raise BadBoundError(error.what, where=f"{WHERE}, {error.where}", fix=error.fix) from None


def _unfit(column: StoreColumn, term: RawTerm, why: str) -> BadBoundError:
    example = example_of(column.type)
    fitting = [term.column, term.op, [example] if term.op == "in" else example]
    fix = f"Send for example {orjson.dumps(fitting).decode()}"
    return BadBoundError(f"the comparison of {column} does not fit: {why}", where=WHERE, fix=fix)


def order_of(spark_type: SparkType) -> Order | None:
    """Return the order of a type; None if its values are not compared."""
    if not is_scalar(spark_type) or isinstance(spark_type, (VoidType, CalendarIntervalType)):
        return None
    match spark_type:
        case FloatType() | DoubleType():
            return _order_of_float
        case StringType(collation):
            return _order_of_text if collation == BINARY_COLLATION else None
        case BinaryType(opaque_as) if opaque_as:
            return None
        case _:
            return _as_it_is


def _order_of_float(value: float) -> tuple[bool, float]:
    return (True, 0.0) if value != value else (False, value)  # noqa: PLR0124


def _order_of_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _as_it_is(value: object) -> object:
    return value


MAX_CHARS: Final = 8 * 1024
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<quoted>`(?:[^`]|``)+`)
    |(?P<number>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![\w.]))|(?P<name>[^\W\d]\w*(?:\.\w+)*)
    |(?P<op><=|>=|<>|!=|==|=|<|>)|(?P<mark>[(),])|(?P<end>$))""",
    re.VERBOSE,
)
_OPS: Final = {"==": "=", "<>": "!="}
_WORDS: Final = frozenset(("and", "in", "is", "not", "null", "or", "true", "false"))
_BOOLEANS: Final = {"true": True, "false": False}


class WhereTextError(BadBoundError):
    """An expression that does not parse. `at` is the offset of the fault, in characters."""

    def __init__(self, text: str, at: int, what: str) -> None:
        super().__init__(
            f"where does not parse at character {at + 1}: {what}",
            where="where",
            fix='Write for example clicks > 990 and country = "de"; also in (...), is null and is not null; or JSON',
        )
        self.text, self.at = text, at

    @property
    def shown(self) -> str:
        """The expression, and a caret below the place."""
        line = re.sub(r"\s", " ", self.text)
        return f"{line}\n{' ' * self.at}^"


class _Token(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """The token in lower case if it is a word of the language, else ""."""
        lower = self.text.lower()
        return lower if self.kind == "name" and lower in _WORDS else ""


def parse_where_text(text: str) -> list[list[object]]:
    """Return the comparisons of an expression, as `clicks > 990 and country = "de"`, in JSON's form.

    A column is a name, with dots for a part or a field, or any text in backquotes. A value is a number, a text in
    single or double quotes (doubled inside), `true` or `false`. Raises WhereTextError.
    """
    if len(text) > MAX_CHARS:
        raise WhereTextError(text, MAX_CHARS, f"it has more than {MAX_CHARS} characters")
    return _Parser(text).parsed()


class _Parser:
    """A parser of one expression. `_next` is the next token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._cut()
        self._next = next(self._tokens)

    def parsed(self) -> list[list[object]]:
        found = [self._comparison()]
        while self._next.kind != "end":
            if self._next.word != "and":
                raise self._error(
                    "comparisons have `and` between them" + ": `or` is not there" * (self._next.word == "or")
                )
            self._take()
            found.append(self._comparison())
        return found

    def _comparison(self) -> list[object]:
        column = self._column()
        if self._next.kind == "op":
            op = self._take().text
            return [column, _OPS.get(op, op), self._value()]
        match self._take_word("in", "is"):
            case "in":
                return [column, "in", self._list()]
            case _:
                is_not = self._next.word == "not" and bool(self._take())
                self._take_word("null")
                return [column, "not_null" if is_not else "is_null"]

    def _column(self) -> str:
        if self._next.kind == "quoted":
            return self._take().text[1:-1].replace("``", "`")
        if self._next.kind != "name" or self._next.word:
            raise self._error("the name of a column is expected")
        return self._take().text

    def _list(self) -> list[object]:
        self._take_mark("(")
        found = [self._value()]
        while self._next.text == "," and self._next.kind == "mark":
            self._take()
            found.append(self._value())
        self._take_mark(")")
        return found

    def _value(self) -> object:
        kind, text, _ = self._next
        if kind == "text":
            quote = self._take().text[0]
            return text[1:-1].replace(quote * 2, quote)
        if kind == "number":
            try:
                found = _number(text)
            except ValueError:
                raise self._error("JSON has no such number") from None
            self._take()
            return found
        if self._next.word in _BOOLEANS:
            return _BOOLEANS[self._take().word]
        if self._next.word == "null":
            raise self._error("null equals nothing: write `is null` or `is not null`")
        raise self._error("a value is expected: a number, or a text in quotes")

    def _take(self) -> _Token:
        taken = self._next
        if taken.kind != "end":
            self._next = next(self._tokens)
        return taken

    def _take_word(self, *words: str) -> str:
        if self._next.word not in words:
            raise self._error(
                f"{' or '.join(words)} is expected"
                if len(words) == 1
                else "a comparison is expected: = != < <= > >= in is"
            )
        return self._take().word

    def _take_mark(self, mark: str) -> None:
        if self._next.kind != "mark" or self._next.text != mark:
            raise self._error(f"`{mark}` is expected")
        self._take()

    def _error(self, what: str) -> WhereTextError:
        return WhereTextError(self._text, self._next.at, what)

    def _cut(self) -> Iterator[_Token]:
        at = 0
        while True:
            found = _TOKEN.match(self._text, at)
            if found is None:
                begins = at + len(self._text[at:]) - len(self._text[at:].lstrip())
                is_open = self._text[begins] in "'\"`"
                raise WhereTextError(
                    self._text, begins, "a quote is not closed" if is_open else "this is not understood"
                )
            kind = found.lastgroup or "end"
            yield _Token(kind, found[kind], found.start(kind))
            at = found.end()


def _number(text: str) -> object:
    """Return a number as JSON has it: of any length, and with digits on both sides of its point."""
    sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text.removeprefix("+"))
    mantissa, e, exponent = digits.lower().partition("e")
    whole, point, fraction = mantissa.partition(".")
    return orjson.loads(f"{sign}{whole.lstrip('0') or '0'}{point and '.'}{fraction or '0' * bool(point)}{e}{exponent}")


OrderBytes = Callable[[Any], bytes]
"""A function from a value, which may be null, to its bytes."""

_NULL: Final = b"\x00"
_GIVEN: Final = b"\x01"
_DOUBLE: Final = struct.Struct(">d")
_NAN: Final = b"\xff" * 8
_ENDS: Final = b"\x00\x00"
"""The end of a text; a zero byte inside it is followed by 0xff, which is greater."""


def compile_order(spark_type: SparkType) -> OrderBytes | None:
    """Compile the order of a type; None for a type whose values are not ordered here.

    Structs compare field by field. Descending order is the exact reverse. The bytes of several columns can be
    concatenated: the bytes of a value are never a prefix of another's.
    """
    given = _order_of_struct(spark_type) if isinstance(spark_type, StructType) else _order_of_scalar(spark_type)
    return None if given is None else lambda value: _NULL if value is None else _GIVEN + given(value)


def _order_of_struct(spark_type: StructType) -> OrderBytes | None:
    fields = [compile_order(field.type) for field in spark_type.fields]
    known = [each for each in fields if each is not None]
    if len(known) < len(fields):
        return None
    return lambda row: b"".join([order(value) for order, value in zip(known, row, strict=True)])


def _order_of_scalar(spark_type: SparkType) -> OrderBytes | None:
    if order_of(spark_type) is None:
        return None
    match spark_type:
        case FloatType() | DoubleType():
            return _float
        case StringType():
            return lambda text: _text(text.encode("utf-8", "surrogateescape"))
        case BinaryType():
            return _text
        case DecimalType():
            unscaled = unscaled_of(spark_type)
            return lambda value: (unscaled(value) + (1 << 127)).to_bytes(16)
        case _:
            return lambda value: (int(value) + (1 << 63)).to_bytes(8)


def _float(value: float) -> bytes:
    if value != value:  # noqa: PLR0124  # NaN
        return _NAN
    packed = _DOUBLE.pack(value + 0.0)  # -0.0 + 0.0 is 0.0
    if packed[0] & 0x80:
        return bytes(255 - byte for byte in packed)
    return bytes([packed[0] | 0x80]) + packed[1:]


def _text(raw: bytes) -> bytes:
    return raw.replace(b"\x00", b"\x00\xff") + _ENDS
