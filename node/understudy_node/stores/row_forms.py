"""The encoding of a state variable's keys and values: as rows, or as Avro records; and of many values under one key
(pure).

Readers use keys and values as rows. Stored Avro records are converted to rows, and the keys of lookups to Avro.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, cast

from understudy_node.checkpoint.avro import NoSuchKeyError, compile_avro_decoder, compile_avro_encoder
from understudy_node.checkpoint.state_variables import AvroRows, StateVariable
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.base.words import StoreKind
from understudy_shared.spark.types import Field, LongType, StructType
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

_LENGTH: Final = struct.Struct("<i")
_COMMA: Final = ord(",")
_WORD_BYTES: Final = 8


def split_values(kept: bytes, *, prefix: bytes, where: str, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the position of each value and its row without `prefix`, beginning with the value at `at`. Raises
    CorruptFileError when the bytes are not such rows to their end.

    Each value is its length, then the encoded row (Spark's `RocksDBStateStoreProvider`, merged by a string append). In
    a checkpoint that Spark 4.0 or 4.1 began, values are separated by a comma, in a later one by nothing. A row's length
    is whole words and a version byte, so its first byte is never a comma: the bytes show whether there are commas.
    """
    end, skip = len(kept), len(prefix)
    has_commas: bool | None = None
    if not end:
        raise CorruptFileError("a list has no values", where=where)
    while at < end:
        begins, start = at, at + _LENGTH.size
        if start > end:
            raise CorruptFileError("a list ends inside a length", where=where)
        (length,) = _LENGTH.unpack_from(kept, at)
        at = start + length
        if length < skip or (length - skip) % _WORD_BYTES or at > end or not kept.startswith(prefix, start):
            raise CorruptFileError("a list holds something that is not a row, or ends inside one", where=where)
        yield begins, kept[start + skip : at]
        if at == end:
            return
        is_comma = kept[at] == _COMMA
        if has_commas not in (None, is_comma):
            raise CorruptFileError("some values of a list are separated, some are not", where=where)
        has_commas = is_comma
        at += is_comma
    raise CorruptFileError("a list ends after a separator", where=where)


def split_records(kept: bytes, *, separator: bytes, where: str, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the position of each Avro record, and the record with its prefix, beginning with the record at `at`. An
    Avro record may have any length, so the caller gives the separator. Raises CorruptFileError when the bytes are not
    such records, with the separator between them, to their end.
    """
    end = len(kept)
    while True:
        begins, start = at, at + _LENGTH.size
        if start > end:
            raise CorruptFileError("a list ends inside a length, or has no values", where=where)
        (length,) = _LENGTH.unpack_from(kept, at)
        at = start + length
        if length < 0 or at > end:
            raise CorruptFileError("a list ends inside a record", where=where)
        yield begins, kept[start:at]
        if at == end:
            return
        if not kept.startswith(separator, at):
            raise CorruptFileError("two records of a list are not separated", where=where)
        at += len(separator)


Columns = tuple[object, ...]

_WRAPPED: Final = struct.Struct("<qii")
"""The bytes before the grouping key in a row where it is the only column: null bits, its size, its offset."""


def row_form(variable: StateVariable, row_prefix: bytes) -> RowForm:
    """Return how a variable is encoded. `row_prefix` is the provider's prefix of a row, or a record."""
    if variable.avro is None:
        return RowForm(variable, row_prefix)
    return AvroRecords(variable, variable.avro, row_prefix)


def _second_columns(variable: StateVariable) -> StructType:
    """Return the columns after the grouping key, as in rows."""
    if variable.kind is StoreKind.TIMERS:
        return StructType((Field("expiryTimestampMs", LongType()),))
    return StructType((Field("userKey", variable.user_key),))


class RowForm:
    """The conversion between rows and stored bytes; None for a key that cannot be stored.

    Here keys and values are stored as rows, each after the provider's prefix.
    """

    def __init__(self, variable: StateVariable, row_prefix: bytes) -> None:
        wrapped = StructType((Field("key", variable.key),))
        self.prefix = row_prefix
        self._where = f"variable {variable.name}"
        self._decode_wrapped, self._encode_wrapped = compile_row_decoder(wrapped), compile_row_encoder(wrapped)
        self._encode_rest_row = compile_row_encoder(_second_columns(variable))

    def key(self, asked: bytes) -> bytes | None:
        """Return the stored form of a key. `asked` is its row, with the provider's prefix."""
        return asked

    def key_row(self, kept: bytes) -> bytes:
        """Return the row of a stored key."""
        return kept[len(self.prefix) :]

    def first(self, grouping: Columns) -> bytes | None:
        """Return the stored form of the first part of a key with two parts."""
        return self.prefix + self._encode_wrapped((grouping,))

    def start(self, row_start: bytes) -> bytes | None:
        """Return the stored prefix of keys with this row prefix; None if the row prefix does not determine it."""
        return self.prefix + row_start

    def first_start(self, row_start: bytes, row_bytes: int) -> bytes | None:
        """Return the stored prefix, with the length, of two-part keys with a grouping key of that row size and row
        prefix; None if these do not determine it. The grouping key is the only column of a row.
        """
        length = len(self.prefix) + _WRAPPED.size + row_bytes
        return _LENGTH.pack(length) + self.prefix + _WRAPPED.pack(0, row_bytes, _WRAPPED.size) + row_start

    def grouping(self, kept: bytes) -> Columns:
        """Return the grouping key in the first part."""
        return cast(Columns, self._decode_wrapped(self.value_row(kept))[0])

    def rest(self, second: Columns) -> bytes | None:
        """Return the stored form of the second part."""
        return self.prefix + self._encode_rest_row(second)

    def rest_row(self, kept: bytes) -> bytes:
        """Return the row of the second part."""
        return self.value_row(kept)

    def value_row(self, kept: bytes) -> bytes:
        """Return the row of a value."""
        if not kept.startswith(self.prefix):
            raise CorruptFileError("a record is not encoded as a row", where=self._where)
        return kept[len(self.prefix) :]

    def list_records(self, kept: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        """Yield the position of each value of a list and its record, beginning with the value at `at`. Raises
        CorruptFileError if the bytes are not a list. The records are without the provider's prefix.
        """
        return split_values(kept, prefix=self.prefix, where=self._where, at=at)

    def list_row(self, record: bytes) -> bytes:
        """Return the row of a value of a list."""
        return record


_SCHEMA_ID: Final = struct.Struct("<h")


class AvroRecords(RowForm):
    """Keys and values are Avro records. Each begins with the provider's prefix, and the number of its schema; but the
    first part of a key with two parts has no number.
    """

    def __init__(self, variable: StateVariable, avro: AvroRows, row_prefix: bytes) -> None:
        super().__init__(variable, row_prefix)
        self._separator = avro.separator
        self._key_prefix = row_prefix + _SCHEMA_ID.pack(avro.key_schema_id)
        self._first, self._decode_first = compile_avro_encoder(avro.first), compile_avro_decoder(avro.first, avro.first)
        self._encode_key_row, self._decode_key_row = compile_row_encoder(avro.first), compile_row_decoder(avro.first)
        if avro.rest.fields:
            self._rest, self._decode_rest = compile_avro_encoder(avro.rest), compile_avro_decoder(avro.rest, avro.rest)
        self._decoders = {
            number: compile_avro_decoder(columns, variable.stored) for number, columns in avro.written.items()
        }
        self._encode_row = compile_row_encoder(variable.stored)

    def key(self, asked: bytes) -> bytes | None:
        try:
            return self._key_prefix + self._first(self._decode_key_row(asked[len(self.prefix) :]))
        except NoSuchKeyError:
            return None

    def key_row(self, kept: bytes) -> bytes:
        self._require(kept, self._key_prefix)
        return self._encode_key_row(self._decode_first(kept, len(self._key_prefix)))

    def first(self, grouping: Columns) -> bytes | None:
        try:
            return self.prefix + self._first((grouping,))
        except NoSuchKeyError:
            return None

    def start(self, row_start: bytes) -> None:
        return None

    def first_start(self, row_start: bytes, row_bytes: int) -> None:
        return None

    def grouping(self, kept: bytes) -> Columns:
        self._require(kept, self.prefix)
        return cast(Columns, self._decode_first(kept, len(self.prefix))[0])

    def rest(self, second: Columns) -> bytes | None:
        try:
            return self._key_prefix + self._rest(second)
        except NoSuchKeyError:
            return None

    def rest_row(self, kept: bytes) -> bytes:
        self._require(kept, self._key_prefix)
        return self._encode_rest_row(self._decode_rest(kept, len(self._key_prefix)))

    def value_row(self, kept: bytes) -> bytes:
        start = len(self.prefix) + _SCHEMA_ID.size
        if not kept.startswith(self.prefix) or len(kept) < start:
            raise CorruptFileError("a record is not encoded as Avro", where=self._where)
        (number,) = _SCHEMA_ID.unpack_from(kept, len(self.prefix))
        decode = self._decoders.get(number)
        if decode is None:
            known = ", ".join(map(str, sorted(self._decoders)))
            raise CorruptFileError(
                f"a value was written with schema {number}, and the schemas {known} are known",
                where=self._where,
                fix="A node reads new schemas at the commit after the query was started with other columns; its events "
                "say why it could not: mend that, or start it again",
            )
        try:
            return self._encode_row(decode(kept, start))
        except CorruptFileError as error:
            raise CorruptFileError(error.what, where=f"{self._where}, {error.where}", fix=error.fix) from None

    def list_records(self, kept: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        return split_records(kept, separator=self._separator, where=self._where, at=at)

    def list_row(self, record: bytes) -> bytes:
        return self.value_row(record)

    def _require(self, kept: bytes, start: bytes) -> None:
        if not kept.startswith(start):
            raise CorruptFileError("a key is not encoded as Avro with the known schema", where=self._where)
