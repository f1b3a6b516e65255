"""The keys of a store in the order of their bytes, each once, however many records it has (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from understudy_node.engine.scans import after_prefix
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import StoreReader

PASSED_BEFORE_SEEK: Final = 16
"""Number of records of one key that are passed over before the next key is sought: a seek costs more than that."""


class ScannedKey(NamedTuple):
    """A key of a store, by its first record. `own`: the bytes with which its records' keys begin, and no other's."""

    own: bytes
    kept: bytes
    value: bytes


def keys_after(
    reader: StoreReader, view: TaskView, after: bytes | None, starts: Sequence[bytes] = (b"",)
) -> Iterator[ScannedKey]:
    """Yield the keys of a partition behind `after`, the own bytes of a key; None: from the first on.

    `starts`, in order, are the bytes behind the store's first ones with which the wanted keys begin. No key is the
    beginning of another, because its slots determine its size. So all that begins with a key's own bytes belongs to it.
    """
    first = reader.first_bytes(view)
    if first is None:
        return
    for each in starts:
        yield from _keys_of(reader, view, after, first + each)


def key_of(reader: StoreReader, view: TaskView, own: bytes) -> ScannedKey:
    """Return the key with these own bytes, which is there."""
    return next(_keys_of(reader, view, None, own))


def _keys_of(reader: StoreReader, view: TaskView, after: bytes | None, first: bytes) -> Iterator[ScannedKey]:
    """Yield the keys that begin with `first`, and are behind `after`."""
    records, end = view.stores[reader.store.store_name], after_prefix(first)
    start: bytes | None = first
    if after is not None:
        if end is not None and after >= end:
            return
        start = after_prefix(after)
        if start is None:  # nothing is behind it: the only key of a store has no columns, and may have no bytes
            return
        start = max(first, start)
    while start is not None:
        own: bytes | None = None
        passed = 0
        for kept, value in records.scan(start, end):
            if own is not None and kept.startswith(own):
                passed += 1
                if passed > PASSED_BEFORE_SEEK:
                    break
                continue
            own, passed = reader.own_bytes(kept), 0
            yield ScannedKey(own, kept, value)
        else:
            return
        start = after_prefix(own) if own is not None else None
