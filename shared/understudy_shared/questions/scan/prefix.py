"""The prefix of a scan: values of leading key columns, parsed as a key is (pure).

A prefix of all columns is a key. A row of a map is of a grouping key, so its columns are those of the grouping key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from understudy_shared.base.errors import BadKeyError
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.spark.key_codec import ANY_PARTITION, KeyCodec, Row
from understudy_shared.spark.layout import bitmap_words, fixed_bytes, fixed_code
from understudy_shared.spark.map_keys import WHOLE_MAP, MapKeyCodec
from understudy_shared.spark.types import DoubleType, FloatType, StructType

MAX_CODECS = 256
"""Number of compiled codecs of prefixes."""

MAX_LATER_COLUMNS = 6
"""Limit on the columns behind a prefix that is sought. Each may be null, whatever its schema says, and doubles the
number of seeks.
"""


@dataclass(frozen=True, slots=True)
class RowStarts:
    """The beginnings of the key rows that have a prefix, in the order of their bytes. `row_bytes` is the size of such a
    row; None where it depends on its other columns.
    """

    starts: tuple[bytes, ...]
    row_bytes: int | None


@dataclass(frozen=True, slots=True)
class KeyPrefix:
    """A prefix. `printed` are its columns as answers print them; `whole` is the encoded key where it has all columns.

    `partition` is that of such a key. `rows` tells how the rows of a prefix of fewer columns begin; None where rows of
    other keys lie between them.
    """

    printed: dict[str, object]
    matches: Callable[[Row], bool]
    whole: bytes | None
    partition: int | None
    rows: RowStarts | None = None

    def may_be_in(self, partition: int) -> bool:
        """Whether the key may be in a partition, of a prefix that has all columns."""
        return self.partition in {partition, ANY_PARTITION}


def row_columns(codec: KeyCodec) -> int:
    """Return the number of columns that the key of a row of a scan has."""
    return codec.num_hash_columns if isinstance(codec, MapKeyCodec) else len(codec.names)


def parse_prefix(codec: KeyCodec, values: Sequence[object], partitions: int) -> KeyPrefix:
    """Parse a prefix, given as JSON values. Raises BadBoundError that names the column."""
    count, columns = len(values), row_columns(codec)
    if not 0 < count <= columns:
        names = ", ".join(codec.names[:columns])
        raise BadBoundError(
            f"the prefix has {count} values, and the key has {columns} columns ({names})",
            where="prefix",
            fix=f"Send a JSON array of values for the first columns, from 1 to {columns}",
        )
    leading = _codec_of(codec.key, codec.names, codec.is_normalised, count)
    try:
        row = leading.parse_json(list(values))
    except BadKeyError as error:
        raise BadBoundError(error.what, where=f"prefix, {error.where}", fix=error.fix) from None
    encoded = leading.encode(row)
    printed = leading.to_json(encoded)
    has_floats = any(word in leading.key.name for word in ("float", "double"))

    def matches(whole: Row) -> bool:
        # By bytes where NaN may be in it, which is not equal to itself.
        return leading.encode(whole[:count]) == encoded if has_floats else whole[:count] == row

    if count < columns:
        whole = StructType(codec.key.fields[:columns])
        return KeyPrefix(printed, matches, None, None, _row_starts(whole, count, encoded))
    key = encoded + WHOLE_MAP if isinstance(codec, MapKeyCodec) else encoded
    return KeyPrefix(printed, matches, key, codec.partition(row, partitions))


@lru_cache(MAX_CODECS)
def _codec_of(key: StructType, names: tuple[str, ...], is_normalised: bool, count: int) -> KeyCodec:
    return KeyCodec(StructType(key.fields[:count]), names=names[:count], is_normalised=is_normalised)


def _row_starts(key: StructType, count: int, encoded: bytes) -> RowStarts | None:
    """Return how rows of `key` begin whose first `count` columns are those of an encoded row.

    A row is its null bits, a slot for each column, then what is too long for a slot. So rows of one prefix lie together
    if all of it is in slots: once for each set of later columns that are null. Floats are left out: a set may have a
    key with -0.0 beside that with 0.0.
    """
    leading, later = key.fields[:count], key.fields[count:]
    if any(fixed_code(each.type) is None or isinstance(each.type, (FloatType, DoubleType)) for each in leading):
        return None
    if len(later) > MAX_LATER_COLUMNS:
        return None
    slots_at = 8 * bitmap_words(count)
    bits = int.from_bytes(encoded[:slots_at], "little")
    width = 8 * bitmap_words(len(key.fields))
    starts = [
        (bits | sum(1 << at for at in nulls)).to_bytes(width, "little") + encoded[slots_at:]
        for size in range(len(later) + 1)
        for nulls in combinations(range(count, len(key.fields)), size)
    ]
    is_fixed = all(fixed_code(each.type) is not None for each in later)
    return RowStarts(tuple(sorted(starts)), fixed_bytes(key) if is_fixed else None)
