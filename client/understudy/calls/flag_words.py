"""A server's words for a request in the words of the command line: flags instead of parameters (pure).

Rule: only what is written as a parameter is changed; values and the user's own words stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from understudy_shared.reads.bound_parsing import BOUNDS, SELECTION

_LONG = tuple(name for name in (*BOUNDS, *SELECTION) if "_" in name)
_ORDINARY = (
    *(name for name in (*BOUNDS, *SELECTION) if "_" not in name),
    *("longs", "partition", "prefix", "where", "fields", "estimate", "from", "to"),
)
"""Words that are also English: parameters only with a value or in quotes."""

_ALL = "|".join((*_LONG, *_ORDINARY))
_WITH_VALUE = re.compile(rf"(?<![\w.'/-])({_ALL})=([\w{{}}-]+)")
_ALONE = re.compile(rf"'({_ALL})'|(?<![\w.'/=-])({'|'.join(_LONG)})(?![\w=])")


def _as_arguments(found: re.Match[str]) -> str:
    words = " ".join(found[1].split("/"))
    return f"Give an argument for each column, two for a window, as understudy get STORE {words}"


_PHRASES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\bSend (?=--)"), "Give "),
    (re.compile(r" \(the plus of an offset as %2B\)"), ""),
    (re.compile(r"\bSend for example (?=--)"), "Give for example "),
    (re.compile(r"\bSend lookup\?key=<([^>]*)>, percent-encoded"), r"Write understudy lookup STORE '<\1>'"),
    (re.compile(r"\bSend a segment for each column, two for a window, as keys/(.*)"), _as_arguments),
    (re.compile(r"^keys/(.*)(?= is not a key of this store: )"), lambda found: " ".join(found[1].split("/"))),
    (re.compile(r"(?<= it has )(\d+) path segments?(?=, the key takes )"), r"\1 parts"),
    (re.compile(r"\bGET /admin/v1/lag\b"), "understudy lag"),
    (re.compile(r"\bGET /v1/stores (?=lists)"), "understudy stores "),
    (re.compile(r"\bGET /v1/applications lists\b"), "understudy applications list shows"),
    (re.compile(r"\bGET /v1/applications/\{application\} (?=says)"), "understudy applications show APPLICATION "),
    (re.compile(r"\bName the application: [^\s;]+"), "Name the application with --application"),
    (re.compile(r"\bname the application$"), "name the application with --application"),
    (
        re.compile(r"^nothing is at \S+ of a service of several applications"),
        "this server has several applications, and this asks one of them",
    ),
    (re.compile(r"^nothing is at /(?:admin/)?v1/applications\b.*"), "this server has one application, not several"),
    (re.compile(r"^nothing is at /.*"), "this server has no such answer"),
    (re.compile(r"^Try /v1/stores, .*"), "Leave --application out; or name a node, a router or a fleet with --url"),
)
_PLACES = {"path": "STORE KEY", "query": "options", "bounds": "options", "query parameter 'key'": "KEY"}


def in_flags(text: str) -> str:
    """Translate a sentence of a problem, with flags for parameters: `max_lag=0` is `--max-lag 0`."""
    text = _ALONE.sub(lambda found: _flag(found[1] or found[2]), _WITH_VALUE.sub(_valued, text))
    for pattern, words in _PHRASES:
        text = pattern.sub(words, text)
    return text


def place_in_flags(where: str) -> str:
    """Name the part of the command that was wrong: `STORE KEY` for the path of its request, a flag for a parameter."""
    return _PLACES.get(where) or (_flag(where) if where in (*_LONG, *_ORDINARY) else in_flags(where))


def _valued(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    if (name, value) in {("require_active", "true"), ("include_expired", "true")}:
        return _flag(name)
    return "--no-include-expired" if (name, value) == ("include_expired", "false") else f"{_flag(name)} {value}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
