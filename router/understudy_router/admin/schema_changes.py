"""The differences between two catalogues: stores that came and went, and changes in those that stayed (pure).

A line of each kind names a few stores and counts the others: there may be a thousand. So it is with the differences of
one store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from understudy_router.admin.faults import named
from understudy_router.cluster.catalogue import StoreRoute, Stores

MAX_CHARACTERS = 80
"""Most characters of a name, type or reason that a line shows: the type of a struct may be very long."""

KINDS = ("new-history", "store-added", "store-removed", "schema-changed")

Line = tuple[str, str]
"""A kind of event, and its text."""


def schema_changes(before: Stores | None, after: Stores | None) -> Iterator[Line]:
    """Yield lines for the changes. While one of the two catalogues is unknown, no change is known either."""
    if before is None or after is None or before.digest == after.digest:
        return
    if before.lineage != after.lineage:
        yield "new-history", f"the query began anew: its checkpoint is now {after.lineage}, before {before.lineage}"
    added = sorted(after.by_name.keys() - before.by_name.keys())
    yield from _line("store-added", [_cut(name) for name in added])
    reasons = {each.get("store"): str(each["reason"]) for each in after.not_served}
    gone = sorted(before.by_name.keys() - after.by_name.keys())
    because = {name: f": {_cut(reasons[name])}" if name in reasons else "" for name in gone}
    yield from _line("store-removed", [_cut(name) + why for name, why in because.items()])
    stayed = sorted(after.by_name.keys() & before.by_name.keys())
    found = ((name, list(differences(before.by_name[name], after.by_name[name]))) for name in stayed)
    yield from _line("schema-changed", [f"{_cut(name)}: {named(words, '; ')}" for name, words in found if words])


def differences(before: StoreRoute, after: StoreRoute) -> Iterator[str]:
    """Yield the changes in a store."""
    if before.operator_id != after.operator_id:
        yield f"operator {after.operator_id}, before {before.operator_id}"
    if before.partitions != after.partitions:
        yield f"{after.partitions} partitions, before {before.partitions}"
    for part in ("key", "value", "result"):
        old, new = before.shown.get(part, ()), after.shown.get(part, ())
        if old != new:
            yield from _columns(part, _types(old), _types(new))


def _columns(part: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name, kind in new.items():
        if name not in old:
            yield f"new {part} column {_cut(name)}, {_cut(kind)}"
        elif kind != old[name]:
            yield f"{part} column {_cut(name)} is {_cut(kind)}, before {_cut(old[name])}"
    for name in old:
        if name not in new:
            yield f"{part} column {_cut(name)} is gone"
    if old == new and list(old) != list(new):
        yield f"{part} columns in another order"


def _types(columns: Any) -> dict[str, str]:
    """Return types by name. The contents of value columns are only for people, and were not checked when they
    arrived.
    """
    shown: Iterable[Mapping[str, object]] = columns
    return {str(column.get("name")): str(column.get("type")) for column in shown}


def _line(kind: str, words: Sequence[str]) -> Iterator[Line]:
    """Yield one line, if there are words for it."""
    if words:
        yield kind, named(words)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
