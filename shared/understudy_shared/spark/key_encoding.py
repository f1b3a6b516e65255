"""The encoding and placement of a store's keys, as JSON: routers send it to clients that ask nodes themselves (pure).

The codec that is made of it is the one that wrote it: `layout` tells two releases that would disagree.
"""

from __future__ import annotations

from typing import NamedTuple

from understudy_shared.base.errors import UnderstudyError, UnsupportedError
from understudy_shared.base.words import KeyPlacement
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.map_keys import key_codec
from understudy_shared.spark.types import parse_schema

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
