"""The pages of HTTP calls, made of the OpenAPI document: one for readers, one for operators."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import starmap
from typing import Any

from tools.reference.markdown import GENERATED, code, entries, fence, page, plain
from tools.reference.openapi_calls import SERVICES, Call, calls, tags

from understudy_shared.http.openapi.document import TAKES_BACK
from understudy_shared.reads.bound_parsing import BOUNDS

Row = tuple[str, str, str, str]
"""A parameter: name, place unless it is the query, type, meaning."""

_FOR_OPERATORS = ("Operations", "Documents")
_INTRODUCTION = GENERATED.format(source="the OpenAPI document that every service has at `/openapi.json`")
_AS_PROBLEM = re.compile(r" As a problem: .*")
_USUAL = "application/json"
_OF_A_FLEET = " of several applications"

_KEY = (("`store`", "path"), ("`key`", "path"), ("`key`", "required"), ("`application`", "path"), ("`node_id`", "path"))
"""Parameters that a path or an example shows by itself, each with its place."""

_GROUPS: Mapping[str, tuple[str, Sequence[str]]] = {
    "Bounds": ("look-up", BOUNDS),
    "Elements of a key": ("look-up", ("limit", "cursor")),
    "Which rows": ("scan", ("partition", "prefix", "where", "from", "to")),
    "Pages of rows": ("scan", ("limit", "cursor")),
}  # fmt: skip
"""Parameters that calls have together, as one call has them. The others name the group."""

_REST = "Parameters of several calls"
_OF_EVERY_CALL = 0.8
"""A problem of more than this part of the calls is named once, not at each."""

_SHORT = 70
"""The length up to which saying something again is no longer than a link."""

_OF_READS = "scan"
"""A call whose problems the others name as those of reads."""


def http_page() -> str:
    """Render the calls that read state."""
    shown = [tag for tag in tags() if tag not in _FOR_OPERATORS]
    return page(
        "# HTTP calls",
        _INTRODUCTION,
        "[HTTP API](../api.md) explains keys, answers and bounds. [Admin calls](admin.md) are for operators. "
        "`/docs` of a service has an example of each. `$url` is a router, a node, or `understudy serve`. The exact "
        "form of a call has the key as JSON in the parameter `key`. Parameters stand in the query, and every service "
        "has a call, unless it says otherwise; parameters that it only names are those [of several "
        "calls](#parameters-of-several-calls). Answers are `application/json`.",
        _common_problems(),
        f"*Problems of reads* are also {_codes(_of_reads())}. They are those of a router; nodes and `understudy serve` "
        "answer reads also with `not-owner` and `store-error`.",
        *starmap(_described, _shared().items()),
        *_groups(shown),
    )


def admin_page() -> str:
    """Render the calls for operators, probes and dashboards."""
    return page(
        "# Admin calls",
        _INTRODUCTION,
        "[Admin API](../admin.md) explains the reports. The page for people is [the admin page](../page.md). "
        "Calls that several services have are described as a router has them: `GET /admin/v1/lag` of a node takes "
        "`store` alone, and answers JSON. A `node_id` is a node as the lag report names it. Parameters stand in the "
        "query, and every service has a call, unless it says otherwise. Answers are `application/json`.",
        _common_problems(),
        *_groups(_FOR_OPERATORS),
    )


def _groups(shown: Sequence[str]) -> Iterator[str]:
    said: dict[str, Call] = {}
    for tag in shown:
        yield f"## {tag}"
        for each in calls():
            if each.tag == tag:
                yield from _call(each, said)


def _call(call: Call, said: dict[str, Call]) -> Iterator[str]:
    """Yield the section of a call. What a call before it says, such as its other form, is not said again."""
    yield f"### {call.name}"
    has_all = len(call.services) == len(SERVICES)
    named = "" if has_all else f", at {' and '.join(SERVICES[each] for each in call.services)}"
    fleet = f"{', at every service' if has_all else ''}{_OF_A_FLEET}" if call.is_of_a_fleet else ""
    yield f"**`{call.method} {call.path}`**{named}{fleet}: {plain(call.operation['summary'])}."
    description = plain(call.operation.get("description", ""))
    form = repr([_own_rows(call), call.operation.get("requestBody"), *_answers(call), sorted(call.problems)])
    same, alike = said.setdefault(form, call), said.setdefault(description, call)
    yield description if alike is call else f"As {_link(alike)}." if description and same is call else ""
    if "requestBody" in call.operation and same is call:
        yield fence(call.operation["x-codeSamples"][0]["source"], "text")
    yield _parts(call, said) if same is call else f"All else is as of {_link(same)}."


def _link(call: Call) -> str:
    return f"[{call.name}](#{call.name})"


def _parts(call: Call, said: dict[str, Call]) -> str:
    """Return parameters, members of the body, and answers."""
    rows = _own_rows(call)
    groups = list(_named(rows))
    answers = [
        f"{status}: as {_link(said[text])}" if len(text) > _SHORT and said.setdefault(text, call) is not call
        else f"{status}: {text}"
        for status, text in _answers(call)
    ]  # fmt: skip
    own, of_reads = call.problems - _common(), frozenset(_of_reads())
    if of_reads <= own:
        answers.append(", ".join(["problems of reads", *map(code, sorted(own - of_reads))]))
    elif own:
        answers.append(f"problems {_codes(sorted(own))}")
    return page(
        entries(_entry(row) for row in rows if not any(row in group for group in _shared().values()))
        + entries(_members(call, said)),
        f"Also {', '.join(groups)}." if groups else "",
        f"Answers {'; '.join(answers)}.",
    )


def _named(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the groups of shared parameters, and of those of which a call has some, these."""
    for title, group in _shared().items():
        names = [row[0] for row in rows if row in group]
        if names:
            of_some = "" if len(names) == len(group) else f"{', '.join(names)} of "
            yield ", ".join(names) if title == _REST else of_some + _title_link(title)


def _title_link(title: str) -> str:
    return f"[{title.lower()}](#{title.lower().replace(' ', '-')})"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))


@cache
def _common() -> frozenset[str]:
    """Return the problems that nearly every call may answer."""
    counted = Counter(slug for call in calls() for slug in call.problems)
    return frozenset(slug for slug, number in counted.items() if number > _OF_EVERY_CALL * len(calls()))


@cache
def _of_reads() -> Sequence[str]:
    (read,) = (call for call in calls() if call.name == _OF_READS)
    return sorted(read.problems - _common())


def _common_problems() -> str:
    return f"Every call may answer the [problems](problems.md) {_codes(sorted(_common()))}; its own are named at each."


def _rows(call: Call) -> list[Row]:
    found = [call.resolved(each) for each in call.operation.get("parameters", [])]
    return [
        (code(each["name"]), _place(each), call.type_text(each["schema"]), plain(each.get("description", "")))
        for each in found
    ]


def _own_rows(call: Call) -> list[Row]:
    return [row for row in _rows(call) if row[:2] not in _KEY]


def _place(parameter: Mapping[str, Any]) -> str:
    place = "" if parameter["in"] == "query" else parameter["in"]
    return ", ".join(filter(None, (place, "required" if parameter.get("required") and place != "path" else "")))


def _entry(row: Row) -> tuple[str, str]:
    name, place, kind, text = row
    return f"{name} ({', '.join(filter(None, (place, kind)))})", text


def _described(title: str, rows: Sequence[Row]) -> str:
    """Return a group of parameters; bounds with one sentence for all that have a default of the store."""
    names = [name for name, *_, text in rows if text.endswith(TAKES_BACK)]
    if title != "Bounds":
        return page(f"## {title}", entries(map(_entry, rows)))
    short = [(name, place, kind, text.removesuffix(TAKES_BACK)) for name, place, kind, text in rows]
    return page(f"## {title}", f"Of {', '.join(names)}{TAKES_BACK}", entries(map(_entry, short)))


@cache
def _shared() -> Mapping[str, Sequence[Row]]:
    """Return the parameters of each group, and the others of several calls, if no two of them have one name."""
    of_readers = [call for call in calls() if call.tag not in _FOR_OPERATORS]
    of_call = {call.name: _own_rows(call) for call in of_readers}
    grouped = {
        title: [row for row in of_call[name] if row[0] in map(code, names)] for title, (name, names) in _GROUPS.items()
    }
    taken = [row for rows in grouped.values() for row in rows]
    counted = Counter(row for rows in of_call.values() for row in rows if row not in taken)
    rest = [row for row, number in counted.items() if number > 2]
    named = Counter(row[0] for row in (*taken, *rest))
    return {**grouped, _REST: [row for row in rest if named[row[0]] == 1]}


def _members(call: Call, said: dict[str, Call]) -> Iterator[tuple[str, str]]:
    """Yield the members of a body; those that are described elsewhere are named in one entry for each place."""
    if "requestBody" not in call.operation:
        return
    schema = call.resolved(call.operation["requestBody"]["content"][_USUAL]["schema"])
    required = schema.get("required", [])
    twins = [each for each in calls() if each.path == call.path and each is not call and not each.is_of_a_fleet]
    of_twin = [row[0] for twin in twins[:1] for row in _rows(twin)]
    elsewhere: dict[str, list[str]] = {}
    for name, part in schema.get("properties", {}).items():
        text = plain(part.get("description") or call.resolved(part).get("description", ""))
        kind, shown = call.type_text(part), code(name)
        rows = ((title, row) for title, rows in _shared().items() for row in rows if row[0] == shown)
        alike = [title for title, row in rows if text and row[3].startswith(text)]
        if alike:
            elsewhere.setdefault(_title_link(alike[0]), []).append(shown)
        elif text and said.setdefault(shown + text, call) is not call:
            elsewhere.setdefault(_link(said[shown + text]), []).append(shown)
        elif not text and shown in of_twin:
            elsewhere.setdefault(_link(twins[0]), []).append(shown + " (array)" * (kind == "array"))
        else:
            yield f"{shown} (body, {'required, ' * (name in required)}{kind})", text
    bounds = [row[0] for row in _shared()["Bounds"]]
    for place, names in elsewhere.items():
        rest = [name for name in names if name not in bounds]
        shown = ", ".join([*rest, _title_link("Bounds")] if set(bounds) <= set(names) else names)
        yield f"in the body, as of {place}: {shown}", ""


def _answers(call: Call) -> Iterator[tuple[str, str]]:
    """Yield what it answers besides problems, which have a page of their own."""
    for status, answer in call.operation["responses"].items():
        found = call.resolved(answer)
        kinds = [kind for kind in found.get("content", {}) if kind != "application/problem+json"]
        text = plain(_AS_PROBLEM.sub("", found["description"])).rstrip(".")
        if kinds or status.startswith("2"):
            yield status, text + (f" ({_codes(kinds)})" if kinds not in ([], [_USUAL]) else "")
