"""The messages between a node and its process for bulk parts: pickled, each after its length (4 bytes).

Both ends are of one release on one machine, and the pipe is theirs alone.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any, BinaryIO, Final, NamedTuple

from understudy_shared.base.errors import UnderstudyError

_LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = _LENGTH.size


class PartCancelledError(Exception):
    """The reader has left, and does not want the part any more."""


class GenerationStores(NamedTuple):
    """The stores of a generation: the process makes the same readers, by these arguments of `store_readers`."""

    number: int
    made_of: Mapping[str, Any]


class OpenBase(NamedTuple):
    """An order to open a local base, of which the node has the files. `directory` is "" for one without records."""

    number: int
    directory: str


class OpenSpill(NamedTuple):
    """The same for a spill."""

    number: int
    directory: str


class TierChanges(NamedTuple):
    """Some changes of a tier, marshalled pairs. `is_last`: the tier is whole."""

    number: int
    first_version: int
    last_version: int
    pairs: bytes
    is_last: bool


class Forget(NamedTuple):
    """An order to close layers."""

    numbers: tuple[int, ...]


class ViewParts(NamedTuple):
    """A view, by the numbers of its layers."""

    version: int
    base_version: int
    base: int
    tiers: tuple[int, ...]
    spill: int | None


class AskedPart(NamedTuple):
    """A request for a part. `task` are the fields of the task's view, except its stores."""

    stores: int
    store: str
    partition: int
    question: Any
    selection: Any
    longs_as_text: bool
    format: str
    task: Mapping[str, Any]
    views: Mapping[str, ViewParts]
    after: bytes | None
    rows: int
    bytes: int
    budget_ms: float


class Drop(NamedTuple):
    """An order to end the part that is being made: its reader has left."""


class Made(NamedTuple):
    """The head of a part that was made; `size` bytes follow."""

    found: int
    looked_at: int
    after: bytes | None
    is_end: bool
    size: int


class Declined(NamedTuple):
    """The reason why the process does not make a part."""

    reason: str


class Dropped(NamedTuple):
    """The answer for a part that ended because its reader had left."""


def encoded(message: object) -> bytes:
    out = BytesIO()
    out.write(bytes(LENGTH_BYTES))
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump(message)
    size = out.tell() - LENGTH_BYTES
    out.seek(0)
    out.write(_LENGTH.pack(size))
    return out.getvalue()


def length_of(head: bytes) -> int:
    """Return the size of a message, by the length before it."""
    (size,) = _LENGTH.unpack(head)
    return int(size)


def read_message(pipe: BinaryIO) -> object:
    """Return the next message of a pipe that is not buffered; None at its end."""
    head = _exactly(pipe, LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    return pickle.loads(_exactly(pipe, length_of(head)))  # noqa: S301  # of the process that started this one


def _exactly(pipe: BinaryIO, size: int) -> bytes:
    """Read `size` bytes, fewer at the end of the pipe. Later bytes stay in the pipe, where `poll` sees them."""
    pieces = bytearray()
    while len(pieces) < size and (piece := pipe.read(size - len(pieces))):
        pieces += piece
    return bytes(pieces)


class _Pickler(pickle.Pickler):
    """A pickler that can pickle all parts of a description of a checkpoint."""

    def reducer_override(self, obj: object) -> Any:
        """Reduce read-only dicts, and errors, whose constructors take their parts by name."""
        if isinstance(obj, MappingProxyType):
            return _proxy, (dict(obj),)
        if isinstance(obj, UnderstudyError):
            return _error, (type(obj), obj.what, obj.where, obj.fix)
        return NotImplemented


def _proxy(items: dict[object, object]) -> Mapping[object, object]:
    return MappingProxyType(items)


def _error(kind: type[UnderstudyError], what: str, where: str, fix: str) -> UnderstudyError:
    return kind(what, where=where, fix=fix)
