"""Finds length-prefixed fields of any sizes at once: the chain in which each field begins where the last one ends.

Pure. Every fourth byte is read as if a length stood there; each plausible length is linked to the end that its field
would have. The real fields are the links that form a chain from the beginning: a word that only looks like a length
mostly has no predecessor, and is dropped. A chain that ends early is right as far as it goes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

# As read little-endian: a big-endian length below 65,536 that is a multiple of 4, as lengths of Spark's rows are. Zero
# stands everywhere in them, so it is not plausible.
_IMPLAUSIBLE_BITS: Final = np.uint32(0x0300FFFF)
_DROP_ROUNDS: Final = 3


def field_chain(content: memoryview) -> tuple[I64, I64]:
    """Return where fields begin in `content`, the first at 0, and their lengths; only fields that end within it.

    A field's bytes follow its length of four bytes. The chain ends at the first length that is not plausible.
    """
    words = np.ndarray((len(content) // 4,), "<u4", content)
    at = np.flatnonzero(((words & _IMPLAUSIBLE_BITS) == 0) & (words != 0))
    lengths = words[at].astype("<u4").byteswap().astype(np.int64)
    ends = at + 1 + lengths // 4
    inside = ends <= len(words)
    at, ends = at[inside], ends[inside]
    # Dropping a false field may leave others without a predecessor: ordinary content is clean after a few rounds.
    for _ in range(_DROP_ROUNDS):
        chained = _chained(at, ends)
        if chained == len(at):
            break
        at, ends = _linked_to(at, ends, len(words))
    else:
        # Still not clean, as for content made to mislead: follow the chain itself, one field at a time.
        at, ends = _walked(at, ends, len(words))
        chained = len(at)
    at, ends = at[:chained], ends[:chained]
    return at * 4, (ends - at - 1) * 4


def _chained(at: I64, ends: I64) -> int:
    """Count the fields from the first on, each of which begins where the last one ends."""
    if not len(at) or at[0]:
        return 0
    breaks = np.flatnonzero(ends[:-1] != at[1:])
    return int(breaks[0]) + 1 if len(breaks) else len(at)


def _linked_to(at: I64, ends: I64, words: int) -> tuple[I64, I64]:
    """Drop the fields that begin where no other ends."""
    linked = np.zeros(words + 1, np.bool_)
    linked[ends] = True
    linked[0] = True
    kept = linked[at]
    return at[kept], ends[kept]


def _walked(at: I64, ends: I64, words: int) -> tuple[I64, I64]:
    """Follow the chain from 0 on, field by field."""
    places = np.full(words + 1, -1, np.int64)
    places[at] = np.arange(len(at))
    following = places[ends].tolist()
    place = int(places[0]) if words else -1
    walked: list[int] = []
    while place >= 0:
        walked.append(place)
        place = following[place]
    return at[walked], ends[walked]
