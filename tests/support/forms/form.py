"""The form of an interface as lines of text, so that two releases can be compared (pure).

A *promise* is what others rely on: it may not go. A *demand* is what others must give: an old one does not know a new
demand of what it already uses. New promises, and demands of what is new, may come with any release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_DEMAND = "demands "


class Form(NamedTuple):
    """The promises and the demands of one interface. The owner of a demand stands before its `: `."""

    promises: frozenset[str]
    demands: frozenset[str] = frozenset()

    def text(self) -> str:
        """Return its lines, in order."""
        return "".join(
            f"{line}\n" for line in [*sorted(self.promises), *sorted(_DEMAND + each for each in self.demands)]
        )


def form_of(text: str) -> Form:
    """Return the form that was recorded as text."""
    lines = text.splitlines()
    demands = frozenset(line.removeprefix(_DEMAND) for line in lines if line.startswith(_DEMAND))
    return Form(frozenset(line for line in lines if not line.startswith(_DEMAND)), demands)


def broken(recorded: Form, today: Form) -> list[str]:
    """List what an earlier release had and today's lacks, and what today's asks of those who know only the earlier."""
    gone = [f"gone or changed: {line}" for line in sorted(recorded.promises - today.promises)]
    known = {line.partition(": ")[0] for line in recorded.promises}
    new = [line for line in today.demands - recorded.demands if line.partition(": ")[0] in known]
    return gone + [f"newly demanded: {line}" for line in sorted(new)]


def schema_lines(schema: Mapping[str, Any], place: str, *, given: bool, answered: bool) -> Iterator[tuple[bool, str]]:
    """Yield the lines of a JSON schema, each with whether it is a demand: of what is `given` to us, or `answered`."""
    yield False, f"{place}: {types_of(schema)}"
    for value in schema.get("enum", [schema["const"]] if "const" in schema else []):
        yield False, f"{place}: may be {value}"
    required = set(schema.get("required", ()))
    for name, each in schema.get("properties", {}).items():
        if name in required and answered:
            yield False, f"{place}.{name}: always there"
        if name in required and given:
            yield True, f"{place}: {name}"
        yield from schema_lines(each, f"{place}.{name}", given=given, answered=answered)
    for where, key in (("[]", "items"), (".*", "additionalProperties")):
        if isinstance(schema.get(key), Mapping):
            yield from schema_lines(schema[key], f"{place}{where}", given=given, answered=answered)
    for key in ("oneOf", "anyOf", "allOf"):
        for each in schema.get(key, ()):
            if "properties" in each:
                yield from schema_lines(each, place, given=given, answered=answered)


def types_of(schema: Mapping[str, Any]) -> str:
    """Return the types of a schema's values, without limits and words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    several = [types_of(each) for key in ("oneOf", "anyOf", "allOf") for each in schema.get(key, ())]
    found = schema.get("type", "anything" if not several else [])
    return "|".join(sorted({*([found] if isinstance(found, str) else found), *several}))


def form(lines: Iterable[tuple[bool, str]]) -> Form:
    """Return the form of lines, each with whether it is a demand."""
    whole = list(lines)
    return Form(
        frozenset(line for is_demand, line in whole if not is_demand),
        frozenset(line for is_demand, line in whole if is_demand),
    )
