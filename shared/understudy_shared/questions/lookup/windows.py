"""The windows of a key: which stores have them, and the part of a question that names key and range (pure).

A window is part of the key of an aggregation, so the windows of one key lie in all partitions. The sessions of a key
lie together, in the partition of the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, cast

from understudy_shared.base.texts import clipped
from understudy_shared.base.words import StoreKind
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.columns import StoreColumn
from understudy_shared.spark.key_codec import KeyCodec, Row, is_window
from understudy_shared.spark.types import StructType

By = Literal["start", "overlap"]

BYS: Final[tuple[By, ...]] = ("start", "overlap")


class WindowsOf(NamedTuple):
    """The requested windows of a key. `key` has its columns without the window, as JSON. `by` says whether the start of
    a window must be in the range, or any moment of it.
    """

    key: tuple[object, ...]
    by: By = "start"


@dataclass(frozen=True, slots=True)
class WindowKey:
    """The key of a store's windows. `codec` encodes its columns without the window. `at` is the window's column in the
    store's key; None for sessions, which are stored after their key.
    """

    codec: KeyCodec
    at: int | None

    def without_window(self, row: Row) -> Row:
        """Return all columns of a stored key except the window."""
        return row if self.at is None else (*row[: self.at], *row[self.at + 1 :])

    def leading(self, printed: dict[str, object]) -> dict[str, object]:
        """Return the columns before the window: a grant by prefix can name only these."""
        return printed if self.at is None else dict(list(printed.items())[: self.at])


def window_key(codec: KeyCodec, kind: str) -> WindowKey:
    """Return the key of the windows of a store. Raises BadBoundError for a store without windows."""
    if kind == StoreKind.SESSION:
        return WindowKey(codec, None)
    windows = [at for at, each in enumerate(codec.key.fields) if is_window(each.type)]
    if kind != StoreKind.VALUE or len(windows) != 1:
        what = "several windows" if len(windows) > 1 else "no window"
        fix = "Ask for the windows of an aggregation by one window, or of sessions; scan the store with where instead"
        raise BadBoundError(f"the key of this store has {what}", where="path", fix=fix)
    (at,) = windows
    fields, names = codec.key.fields, codec.names
    others = StructType((*fields[:at], *fields[at + 1 :]))
    return WindowKey(KeyCodec(others, names=(*names[:at], *names[at + 1 :]), is_normalised=codec.is_normalised), at)


def require_by(value: object) -> By:
    """Return whether windows are chosen by their starts or by all of their moments. Raises BadBoundError."""
    for by in BYS:
        if value == by:
            return by
    raise BadBoundError(f"by={clipped(value)} is not a choice", where="by", fix=f"Send one of: {', '.join(BYS)}")


def window_columns(codec: KeyCodec, at: int) -> tuple[StoreColumn, StoreColumn]:
    """Return the columns of start and end of a window in a key."""
    name, fields = codec.names[at], cast(StructType, codec.key.fields[at].type).fields
    start, end = (StoreColumn("key", (name, each.name), (at, index), each.type) for index, each in enumerate(fields))
    return start, end
