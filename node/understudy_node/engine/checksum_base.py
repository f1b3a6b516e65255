"""A base whose stored values carry Spark's row checksums: each value is verified when it is read, and stripped.

The rule: a row that fails its checksum is an error, never an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from understudy_node.checkpoint.row_checksum import ChecksumError
from understudy_node.engine.base import Base, WrappingBase
from understudy_shared.base.errors import CorruptFileError


class ChecksumBase(WrappingBase):
    """`base` without its checksums. `verified(key, stored)` returns the value, or raises ChecksumError."""

    def __init__(self, base: Base, verified: Callable[[bytes, bytes], bytes]) -> None:
        super().__init__(base)
        self._verified = verified

    def get(self, key: bytes) -> bytes | None:
        return self._strip(key, self._base.get(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._strip(key, stored) for key, stored in zip(keys, self._base.get_many(keys), strict=True)]

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for key, stored in self._base.scan(start, end):
            value = self._strip(key, stored)
            if value is not None:
                yield key, value

    @property
    def families(self) -> Mapping[str, int]:
        return self._base.families

    def _strip(self, key: bytes, stored: bytes | None) -> bytes | None:
        if stored is None:
            return None
        try:
            return self._verified(key, stored)
        except ChecksumError as error:
            raise CorruptFileError(
                f"a row of the snapshot is damaged: {error}",
                where=f"{self._base!r}, key {key[:32].hex()}",
                fix="Check the storage; restore this partition again from the checkpoint",
            ) from None
