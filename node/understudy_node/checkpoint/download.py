"""A download from an object store that goes on where it was cut, while the object is still the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

import obstore

from understudy_node.checkpoint.files import too_large_to_read
from understudy_node.checkpoint.store_failures import StoreTerms
from understudy_shared.base.errors import CheckpointError

PIECE_BYTES = 1 << 18
"""Bytes of a download that are handed over at once. A broken connection loses the rest of a piece."""


@dataclass(slots=True)
class Download:
    """One file on its way into `file`, piece by piece. `where` is for messages."""

    path: str
    file: BinaryIO
    max_bytes: int | None
    where: str
    terms: StoreTerms
    done: int = 0
    """The bytes that are in the file."""
    meta: Any = None
    """The object's metadata, as the download began."""

    def go_on(self, store: Any) -> Any:
        """Begin, or go on where the try before was cut. The object's metadata, once the file is whole."""
        if self.meta is None or self.done != self.meta["size"]:
            self._ask(store)
        return self.meta

    def _ask(self, store: Any) -> None:
        options: Any = {}
        if self.done:
            if not (tag := self.meta[self.terms.tag]):
                raise CheckpointError("The download was cut, and the store names no versions", where=self.where)
            options = {self.terms.condition: tag, "range": {"offset": self.done}}
        result = obstore.get(store, self.path, options=options)
        refuse_folder(result, self.terms)
        if not self.done:
            self.meta = result.meta
        size = self.meta["size"]
        if self.max_bytes is not None and size > self.max_bytes:
            raise too_large_to_read(self.where, size, self.max_bytes)
        for part in result.stream(min_chunk_size=PIECE_BYTES):
            self.file.write(part)
            self.done += len(part)
        if self.done != size:
            raise ConnectionError("kind: Short,")  # the library should have raised; the try counts as cut


def refuse_folder(found: Any, terms: StoreTerms) -> None:
    """Raise FileNotFoundError if the object only marks a folder."""
    if terms.folder_mark is not None and terms.folder_mark in found.attributes:
        raise FileNotFoundError
