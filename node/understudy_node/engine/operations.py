"""Resolves a version's operations into plain changes: merges and range deletes become puts and deletes.

The rule: operations apply in order, each to the result of the previous ones. Pure but for reading the view.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from understudy_node.engine.view import View


class Operation(Protocol):
    """One record of a changelog. A range delete's `key` is its begin and its `value` the end, exclusive."""

    @property
    def kind(self) -> Literal["put", "delete", "merge", "delete-range"]: ...

    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...


def resolve_operations(
    view: View,
    operations: Iterable[Operation],
    delimiter: bytes,
    changes: dict[bytes, bytes | None] | None = None,
) -> dict[bytes, bytes | None]:
    """Return the changes for `view.with_changes`. `delimiter` separates list elements in the store's merge operator.

    `changes` are those of the same version before these operations; they are updated and returned. A range delete costs
    a scan over its range. The pieces merged into one key are joined once, however many there are.
    """
    if changes is None:
        changes = {}
    pieces: dict[bytes, list[bytes]] = {}
    for operation in operations:
        kind, key = operation.kind, operation.key
        if kind == "merge":
            assert operation.value is not None, "a merge has a value"
            merged = pieces.get(key)
            if merged is None:
                before = changes[key] if key in changes else view.get(key)
                merged = pieces[key] = [] if before is None else [before]
            merged.append(operation.value)
            continue
        if kind == "delete-range":
            _join(changes, pieces, delimiter)
            _delete_range(view, changes, key, operation.value)
            continue
        assert kind == "delete" or operation.value is not None, "a put has a value"
        pieces.pop(key, None)
        changes[key] = None if kind == "delete" else operation.value
    _join(changes, pieces, delimiter)
    return changes


def _join(changes: dict[bytes, bytes | None], pieces: dict[bytes, list[bytes]], delimiter: bytes) -> None:
    """Make values of the pieces merged so far."""
    for key, merged in pieces.items():
        changes[key] = delimiter.join(merged)
    pieces.clear()


def _delete_range(view: View, changes: dict[bytes, bytes | None], begin: bytes, end: bytes | None) -> None:
    for key in changes:
        if begin <= key and (end is None or key < end):
            changes[key] = None
    for key, _ in view.scan(begin, end):
        changes[key] = None
