"""A filter as an expression (pure): `clicks > 990 and country = "de"`.

Comparisons with `and` between them. A column is a name, with dots for a part or a field, or any text in backquotes. A
value is a number, a text in single or double quotes (doubled inside), `true` or `false`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import orjson

from understudy_shared.reads.bounds import BadBoundError

MAX_CHARS: Final = 8 * 1024
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<quoted>`(?:[^`]|``)+`)
    |(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))|(?P<name>[^\W\d]\w*(?:\.\w+)*)
    |(?P<op><=|>=|<>|!=|==|=|<|>)|(?P<mark>[(),])|(?P<end>$))""",
    re.VERBOSE,
)
_OPS: Final = {"==": "=", "<>": "!="}
_WORDS: Final = frozenset(("and", "in", "is", "not", "null", "or", "true", "false"))
_COMPARISONS: Final = "= != < <= > >= in is"
_BOOLEANS: Final = {"true": True, "false": False}


class WhereTextError(BadBoundError):
    """An expression that does not parse; `at` is the place, in characters."""

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
    """Return the comparisons of an expression as JSON has them. Raises WhereTextError."""
    if len(text) > MAX_CHARS:
        raise WhereTextError(text, MAX_CHARS, f"it has more than {MAX_CHARS} characters")
    return _Parser(text).parsed()


class _Parser:
    """A parser of one expression. `_next` is the token that comes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._cut()
        self._next = next(self._tokens)

    def parsed(self) -> list[list[object]]:
        """Return the comparisons."""
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
            self._take()
            return _number(text)
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
