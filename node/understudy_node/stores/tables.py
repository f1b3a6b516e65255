"""Where a table is that is not all of a store: keys of a column family begin with its id."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from understudy_node.engine.view import View
from understudy_shared.errors import CorruptFileError

_FAMILY: Final = struct.Struct("<h")
FAMILY_BYTES: Final = _FAMILY.size


@dataclass(frozen=True, slots=True)
class Table:
    """A store of its own, or a column family of one."""

    store: str
    family: str | None = None

    def __str__(self) -> str:
        return self.family or self.store

    def first_bytes(self, view: View) -> bytes:
        """What its keys begin with: the id of the family, which only a snapshot says."""
        if self.family is None:
            return b""
        family_id = view.base.families.get(self.family)
        if family_id is None:
            raise CorruptFileError(f"the snapshot has no column family {self.family}", where=f"store {self.store}")
        return _FAMILY.pack(family_id)
