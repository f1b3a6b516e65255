"""The records of `dropDuplicates` and `dropDuplicatesWithinWatermark`: that a key was seen, and until when it counts.

Spark removes a key in the first batch whose watermark has reached its expiry. The watermark that a version leaves to
the next batch may have passed it before that batch runs: such a key is `expired`, and still there.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from understudy_node.replica.task_view import TaskView
from understudy_node.stores.expiry import EXPIRED_JSON, Expiry
from understudy_node.stores.finder import Found, MakeFinder
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.reads.bounds import Selection
from understudy_shared.spark.normalise import Normaliser, compile_normaliser
from understudy_shared.spark.temporal import timestamp_text
from understudy_shared.spark.types import StructType
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

SEEN: Final = b'"found":true,'
"""The member for a key of a set without an expiry."""


class _Set:
    """A finder of the keys that a state store has behind `row_prefix`."""

    def __init__(self, store_name: str, row_prefix: bytes) -> None:
        self._store_name = store_name
        self._row_prefix = row_prefix
        self._skip = len(row_prefix)

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`."""
        return kept[self._skip :]

    def first_bytes(self, view: TaskView) -> bytes:
        """See `Finder`."""
        return b""

    def own_bytes(self, kept: bytes) -> bytes:
        """See `Finder`."""
        return kept

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes:
        """See `Finder`."""
        return self._row_prefix + start


class ExpiringSet(_Set):
    """A finder of a key and its expiry. `value` has one column, microseconds."""

    def __init__(self, store_name: str, value: StructType, expiry: Expiry, row_prefix: bytes) -> None:
        super().__init__(store_name, row_prefix)
        self._expiry = expiry
        self._decode = compile_row_decoder(value)

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        kept = view.stores[self._store_name].get(stored)
        if kept is None:
            return None
        (expires_us,) = self._decode(kept[self._skip :])
        if not isinstance(expires_us, int):
            raise CorruptFileError("a key of a set has no expiry", where=f"store {self._store_name}")
        expired = self._expiry.is_expired(expires_us, view)
        is_hidden = expired is True and not selection.include_expired
        members = b'"found":%b,"expires_at":"%b","expired":%b,' % (
            b"false" if is_hidden else b"true",
            timestamp_text(expires_us).encode(),
            EXPIRED_JSON[expired],
        )
        return Found(members, is_hidden)


class SeenSet(_Set):
    """A finder of a key that is stored for ever."""

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        return None if view.stores[self._store_name].get(stored) is None else Found(SEEN)


class EitherZero:
    """A finder of a key with floats as it is, else as Spark 4.3 normalises it.

    Up to 4.1 Spark stores -0.0 in the keys of a deduplication beside 0.0. Later it stores 0.0 for both, and a
    checkpoint does not record which Spark wrote a key.
    """

    def __init__(self, make_finder: MakeFinder, key: StructType, normalise: Normaliser, row_prefix: bytes) -> None:
        self._finder = make_finder(row_prefix)
        self._row_prefix = row_prefix
        self._decode, self._encode, self._normalise = compile_row_decoder(key), compile_row_encoder(key), normalise

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        found = self._finder.find(view, stored, selection)
        if found is not None:
            return found
        normal = self._row_prefix + self._encode(self._normalise(self._decode(stored[len(self._row_prefix) :])))
        return None if normal == stored else self._finder.find(view, normal, selection)

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`."""
        return self._finder.key_row(kept)

    def first_bytes(self, view: TaskView) -> bytes | None:
        """See `Finder`."""
        return self._finder.first_bytes(view)

    def own_bytes(self, kept: bytes) -> bytes:
        """See `Finder`."""
        return self._finder.own_bytes(kept)

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes | None:
        """See `Finder`."""
        return self._finder.start_bytes(start, row_bytes)


def either_zero(make_finder: MakeFinder, key: StructType) -> MakeFinder | None:
    """Make a finder for keys with floats; None for a key that is stored in one way only."""
    normalise = compile_normaliser(key)
    return None if normalise is None else partial(EitherZero, make_finder, key, normalise)
