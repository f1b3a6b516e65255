"""What `dropDuplicates` and `dropDuplicatesWithinWatermark` keep: that a key was seen, and until when it counts.

Spark removes a key in the first batch whose watermark has reached its expiry. The watermark that a version leaves to
the next batch may have passed it before that batch runs: such a key is `expired`, and still there.
"""

from __future__ import annotations

from typing import Final

from understudy_node.replica.task_view import TaskView
from understudy_node.stores.expiry import EXPIRED_JSON, Expiry
from understudy_node.stores.finder import Found
from understudy_shared.errors import CorruptFileError
from understudy_shared.selection import Selection
from understudy_shared.spark.temporal import timestamp_text
from understudy_shared.spark.types import StructType
from understudy_shared.spark.unsafe_row import compile_row_decoder

SEEN: Final = b'"found":true,'
"""What is said of a key of a set that forgets nothing by itself."""


class ExpiringSet:
    """Finds a key and its expiry. `value` has one column, microseconds."""

    def __init__(self, store_name: str, value: StructType, expiry: Expiry, row_prefix: bytes) -> None:
        self._store_name = store_name
        self._expiry = expiry
        self._skip = len(row_prefix)
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

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`."""
        return kept[self._skip :]

    def first_bytes(self, view: TaskView) -> bytes:
        """See `Finder`."""
        return b""
