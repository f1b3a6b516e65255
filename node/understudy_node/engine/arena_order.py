"""Sorts an arena's keys by their bytes, eight at a time, and only keys whose earlier bytes are equal.

Pure. Keys of a store share long stretches (null bits, field offsets), so most words are skipped without sorting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


def sorted_offsets(data: U8, offsets: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `offsets` of records in the order of their keys."""
    order = offsets.astype(np.int64)
    lengths = _lengths(data, order)
    # Places whose key still equals a neighbour's, and the group of each: the index of the group's first place.
    open_places = np.arange(len(order))
    groups = np.zeros(len(order), np.int64)
    for position in range(0, int(lengths.max(initial=0)) + 8, 8):
        if len(open_places) < 2:
            break
        chosen, chosen_lengths = order[open_places], lengths[open_places]
        words = _words(data, chosen, chosen_lengths, position)
        if words.min() == words.max() and position + 8 <= chosen_lengths.min():
            continue
        # Words are zero-padded: of two equal words that of the shorter key sorts first, so lengths break the tie.
        ends = np.minimum(chosen_lengths, position + 8)
        by_key = np.lexsort((ends, words, groups))
        order[open_places] = chosen[by_key]
        lengths[open_places] = chosen_lengths[by_key]
        open_places, groups = _still_open(open_places, groups[by_key], words[by_key], ends[by_key])
    return order.astype(offsets.dtype)


def _still_open(open_places: I64, groups: I64, words: npt.NDArray[np.uint64], ends: I64) -> tuple[I64, I64]:
    """Return the places whose key is still equal to a neighbour's, and their new groups."""
    first = np.ones(len(groups), np.bool_)
    first[1:] = (groups[1:] != groups[:-1]) | (words[1:] != words[:-1]) | (ends[1:] != ends[:-1])
    starts = np.flatnonzero(first)
    sizes = np.diff(np.append(starts, len(groups)))
    tied = np.repeat(sizes > 1, sizes)
    return open_places[tied], np.repeat(starts, sizes)[tied]


def _lengths(data: U8, offsets: I64) -> I64:
    return np.ndarray((len(data) - 3,), ">i4", data.data, strides=(1,))[offsets].astype(np.int64)


def _words(data: U8, offsets: I64, lengths: I64, position: int) -> npt.NDArray[np.uint64]:
    """Return eight key bytes from `position` on as a number, zeros where the key has ended."""
    if len(data) < 8:
        return np.zeros(len(offsets), np.uint64)
    at = offsets + 4 + position
    last = len(data) - 8
    # Eight bytes from here may exceed the file: read from further left and shift into place.
    inside = np.minimum(at, last)
    words = np.ndarray((last + 1,), ">u8", data.data, strides=(1,))[inside].astype(np.uint64)
    words <<= np.minimum((at - inside) * 8, 63).astype(np.uint64)
    missing = np.clip(position + 8 - lengths, 0, 8)
    keep = np.where(missing == 8, 0, np.uint64(0xFFFFFFFFFFFFFFFF) << (np.minimum(missing, 7) * 8).astype(np.uint64))
    return words & keep.astype(np.uint64)
