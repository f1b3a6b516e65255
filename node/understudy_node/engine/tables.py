"""The tables of a store: keys of a column family begin with its id."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from understudy_node.engine.view import View
from understudy_shared.base.errors import CorruptFileError

_FAMILY: Final = struct.Struct("<h")
FAMILY_BYTES: Final = _FAMILY.size


@dataclass(frozen=True, slots=True)
class Table:
    """A store of its own, or a column family of one."""

    store: str
    family: str | None = None

    def __str__(self) -> str:
        return self.family or self.store

    def is_in(self, view: View) -> bool:
        """Whether there is such a table. Spark makes the families of state variables when a partition has its first
        row, and a version that brings one is not shown before its snapshot was read: so one that is not there is empty.
        """
        return self.family is None or self.family in view.base.families

    def first_bytes(self, view: View) -> bytes:
        """Return the bytes with which its keys begin: the id of the family, which only a snapshot has."""
        if self.family is None:
            return b""
        family_id = view.base.families.get(self.family)
        if family_id is None:
            raise CorruptFileError(f"the snapshot has no column family {self.family}", where=f"store {self.store}")
        return _FAMILY.pack(family_id)


def brings_families(known: Mapping[str, int], keys: Iterable[bytes]) -> bool:
    """Whether there are keys of families other than the known ones."""
    return not {key[:FAMILY_BYTES] for key in keys} <= {_FAMILY.pack(family_id) for family_id in known.values()}
