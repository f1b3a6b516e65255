"""Null keys of `transformWithStateInPandas`, as pandas hands them to Spark's store (pure).

Spark hashes the null, so the key is in null's partition, but the store gets what pandas has in its place: NaN for a
number, and from pandas 3 on the text "NaN" for a string.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from understudy_shared.spark.key_codec import KeyCodec, Row
from understudy_shared.spark.types import DoubleType, FloatType, StringType

_NUMBERS = (FloatType, DoubleType)


def as_pandas_keeps(codec: KeyCodec, encoded: bytes) -> Iterator[tuple[bytes, Row]]:
    """Yield the other keys under which a key with nulls may be stored: encoded, and as rows."""
    row = codec.decode(encoded)
    grouping = list(zip(codec.key.fields[: codec.num_hash_columns], row, strict=False))
    nulls = {type(field.type) for field, value in grouping if value is None}
    if nulls.intersection(_NUMBERS):
        yield _replaced(codec, row, is_text_too=False)
    if StringType in nulls:
        yield _replaced(codec, row, is_text_too=True)


def _replaced(codec: KeyCodec, row: Row, *, is_text_too: bool) -> tuple[bytes, Row]:
    values = list(row)
    for at, field in enumerate(codec.key.fields[: codec.num_hash_columns]):
        if values[at] is None and isinstance(field.type, _NUMBERS):
            values[at] = math.nan
        elif values[at] is None and is_text_too and isinstance(field.type, StringType):
            values[at] = "NaN"
    return codec.encode(tuple(values)), tuple(values)
