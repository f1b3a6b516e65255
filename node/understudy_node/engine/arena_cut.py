"""The record that the end of a piece cuts off: the finder reads on through further pieces, without buffering it.

Pure. Its key is hashed as it comes.
"""

from __future__ import annotations

from enum import Enum, auto

import mmh3


class _Field(Enum):
    KEY_LENGTH = auto()
    KEY = auto()
    VALUE_LENGTH = auto()
    VALUE = auto()
    NOTHING = auto()


class CutRecord:
    """A record that begins at `offset` of the content. It may turn out to be the end mark, or `damage`."""

    def __init__(self, offset: int, seed: int) -> None:
        self.offset = offset
        self.is_end_mark = False
        self.damage: str | None = None
        self._hasher = mmh3.mmh3_32(seed=seed)
        self._field = _Field.KEY_LENGTH
        self._missing = 4
        self._length = b""

    @property
    def is_whole(self) -> bool:
        return self._field is _Field.NOTHING

    @property
    def key_hash(self) -> int:
        return self._hasher.uintdigest()

    def take(self, piece: memoryview, at: int) -> int:
        """Read on from `at`; return where the record ends, or the end of `piece`."""
        while at < len(piece) and not self.is_whole:
            part = piece[at : at + self._missing]
            at += len(part)
            self._missing -= len(part)
            if self._field in (_Field.KEY_LENGTH, _Field.VALUE_LENGTH):
                self._length += part
            elif self._field is _Field.KEY:
                self._hasher.update(part)
            while not self._missing and not self.is_whole:
                self._next_field()
        return at

    def _next_field(self) -> None:
        if self._field is _Field.KEY:
            self._field, self._missing, self._length = _Field.VALUE_LENGTH, 4, b""
            return
        if self._field is _Field.VALUE:
            self._field = _Field.NOTHING
            return
        is_key = self._field is _Field.KEY_LENGTH
        self._missing = int.from_bytes(self._length, "big", signed=True)
        self._field = _Field.KEY if is_key else _Field.VALUE
        if self._missing >= 0:
            return
        self._field = _Field.NOTHING
        if is_key and self._missing == -1:
            self.is_end_mark = True
        else:
            self.damage = (
                f"a record with a {'key' if is_key else 'value'} of {self._missing} bytes at byte {self.offset}"
            )
