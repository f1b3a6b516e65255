"""The prefix of a scan: values of leading key columns, parsed as a key is (pure).

A prefix of all columns is a key. A row of a map is of a grouping key, so its columns are those of the grouping key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from understudy_shared.base.errors import BadKeyError
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.spark.key_codec import KeyCodec, Row
from understudy_shared.spark.map_keys import WHOLE_MAP, MapKeyCodec
from understudy_shared.spark.types import StructType

MAX_CODECS = 256
"""Number of compiled codecs of prefixes."""


@dataclass(frozen=True, slots=True)
class KeyPrefix:
    """A prefix. `printed` are its columns as answers print them; `whole` is the encoded key where it has all columns.

    `partition` is that of such a key.
    """

    printed: dict[str, object]
    matches: Callable[[Row], bool]
    whole: bytes | None
    partition: int | None


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
        return KeyPrefix(printed, matches, None, None)
    key = encoded + WHOLE_MAP if isinstance(codec, MapKeyCodec) else encoded
    return KeyPrefix(printed, matches, key, codec.partition(row, partitions))


@lru_cache(MAX_CODECS)
def _codec_of(key: StructType, names: tuple[str, ...], is_normalised: bool, count: int) -> KeyCodec:
    return KeyCodec(StructType(key.fields[:count]), names=names[:count], is_normalised=is_normalised)
