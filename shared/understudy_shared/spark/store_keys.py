"""The codecs of a store's keys by its kind, and their encoding as JSON, which routers send to clients that ask nodes.

Pure. A map store has two forms of keys: a grouping key alone reads the whole map, with a user key it reads one entry.
The grouping key alone decides the partition. Their bytes differ in length: UnsafeRows are whole words, and the row of a
whole map is followed by one more byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from understudy_shared.base.errors import UnderstudyError, UnsupportedError
from understudy_shared.base.words import KeyPlacement, StoreKind
from understudy_shared.spark.key_codec import KeyCodec, Row
from understudy_shared.spark.types import StructType, parse_schema
from understudy_shared.spark.unsafe_row import RowEncoder

WHOLE_MAP: Final = b"\x00"
"""The byte that follows the row of a grouping key without a user key."""
_WORD_BYTES: Final = 8


class MapKeyCodec(KeyCodec):
    """The codec of a map's keys. The first `num_hash_columns` columns are the grouping key."""

    def __init__(
        self,
        key: StructType,
        *,
        names: Sequence[str],
        num_hash_columns: int,
        is_normalised: bool = True,
        placement: KeyPlacement = KeyPlacement.BY_HASH,
    ) -> None:
        super().__init__(
            key, names=names, num_hash_columns=num_hash_columns, is_normalised=is_normalised, placement=placement
        )
        self._whole = KeyCodec(
            StructType(key.fields[:num_hash_columns]),
            names=names[:num_hash_columns],
            is_normalised=is_normalised,
            placement=placement,
        )
        encode_entry, print_entry = self.encode, self.to_json
        encode_whole, print_whole = self._whole.encode, self._whole.to_json
        self.encode: RowEncoder = lambda row: (
            encode_whole(row) + WHOLE_MAP if len(row) == num_hash_columns else encode_entry(row)
        )
        self.to_json = lambda encoded: print_whole(encoded[:-1]) if is_of_whole_map(encoded) else print_entry(encoded)

    def parse_json(self, key: object) -> Row:
        """See `KeyCodec`. An array or object of the grouping key's columns alone is a key, too."""
        if isinstance(key, list | tuple | dict) and len(key) == self.num_hash_columns:
            return self._whole.parse_json(key)
        return super().parse_json(key)

    def parse_segments(self, segments: Sequence[str]) -> Row:
        """See `KeyCodec`. The segments of the grouping key alone are a key, too."""
        if len(segments) == self._whole.num_segments:
            return self._whole.parse_segments(segments)
        return super().parse_segments(segments)

    def decode(self, encoded: bytes) -> Row:
        """See `KeyCodec`."""
        return self._whole.decode(encoded[:-1]) if is_of_whole_map(encoded) else super().decode(encoded)

    def place(self, encoded: bytes, partitions: int) -> int | None:
        """See `KeyCodec`."""
        if is_of_whole_map(encoded):
            return self._whole.place(encoded[:-1], partitions)
        return super().place(encoded, partitions)


def is_of_whole_map(encoded: bytes) -> bool:
    """Whether an encoded key is a grouping key alone."""
    return len(encoded) % _WORD_BYTES == 1 and encoded.endswith(WHOLE_MAP)


def key_codec(
    key: StructType,
    kind: str,
    *,
    names: Sequence[str],
    num_hash_columns: int | None,
    is_normalised: bool,
    placement: KeyPlacement = KeyPlacement.BY_HASH,
) -> KeyCodec:
    """Make the codec of a store's keys, by the kind of the store (`StoreKind`)."""
    more: dict[str, Any] = {"names": names, "is_normalised": is_normalised, "placement": placement}
    if kind == StoreKind.MAP and num_hash_columns is not None:
        return MapKeyCodec(key, num_hash_columns=num_hash_columns, **more)
    return KeyCodec(key, num_hash_columns=num_hash_columns, **more)


def described_key(codec: KeyCodec, kind: str) -> dict[str, object]:
    """Describe the columns of a store's keys for `GET /v1/stores`, with those of a map's user key apart."""
    if kind != StoreKind.MAP:
        return {"key": codec.columns}
    grouping = codec.num_hash_columns
    return {"key": codec.columns[:grouping], "user_key": codec.columns[grouping:]}


MAX_SCHEMA_CHARACTERS = 262_144
"""Longest schema of keys that is parsed: the limit of a catalogue, too."""


class KeyEncoding(NamedTuple):
    """All that decides the partition of a key. `key_schema` is Spark's JSON of the key columns' struct."""

    kind: str
    key_schema: str
    key_names: list[str]
    num_hash_columns: int | None
    is_normalised: bool
    placement: KeyPlacement = KeyPlacement.BY_HASH

    def codec(self) -> KeyCodec:
        """Make the codec. Raises UnderstudyError, ValueError and the like for keys that cannot be encoded."""
        return key_codec(
            parse_schema(self.key_schema),
            self.kind,
            names=self.key_names,
            num_hash_columns=self.num_hash_columns,
            is_normalised=self.is_normalised,
            placement=self.placement,
        )

    def document(self, codec: KeyCodec, partitions: int) -> dict[str, object]:
        """Return it as JSON, with the layout of its codec."""
        return {**self._asdict(), "layout": codec.layout(partitions)}


def parse_encoding(document: object, partitions: int) -> KeyCodec:
    """Return the codec of a document. Raises UnsupportedError for one that this release does not encode alike."""
    match document:
        case {
            "kind": str(kind),
            "key_schema": str(key_schema),
            "key_names": [*key_names],
            "num_hash_columns": int() | None as num_hash_columns,
            "is_normalised": bool(is_normalised),
            "layout": str(layout),
            **others,
        } if len(key_schema) <= MAX_SCHEMA_CHARACTERS and all(isinstance(each, str) for each in key_names):
            # A placement that this release does not know is that of another layout.
            is_scattered = others.get("placement") == KeyPlacement.SCATTERED
            placement = KeyPlacement.SCATTERED if is_scattered else KeyPlacement.BY_HASH
            encoding = KeyEncoding(kind, key_schema, key_names, num_hash_columns, is_normalised, placement)
        case _:
            raise UnsupportedError("the encoding of keys has other members than this release knows", where="encoding")
    try:
        codec = encoding.codec()
        is_alike = codec.layout(partitions) == layout
    except (UnderstudyError, *NOT_ENCODABLE) as error:
        what = f"the encoding does not let keys be encoded: {type(error).__name__}: {error!s:.200}"
        raise UnsupportedError(what, where="encoding") from None
    if not is_alike:
        raise UnsupportedError("this release would encode the keys in another way than the server", where="encoding")
    return codec


NOT_ENCODABLE = (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError, SyntaxError)
"""Errors of a malformed schema, besides those that say what is wrong with it."""
