"""Hashes the keys of many records at once: `mmh3.hash(key, seed, signed=False)`, which lookups use, in numpy.

Pure. It takes a few numpy calls for every four bytes of the longest keys, however many keys there are; so keys that are
few, or longer than most others, are left to the library.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import mmh3
import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

_TOGETHER_MIN: Final = 256
"""Number of keys from which on numpy pays: hashing fewer takes less time than its calls."""


def evenly_spaced_key_hashes(piece: memoryview, starts: range, length: int, seed: int) -> U32:
    """Hash keys of one `length`, which begin at `starts` of `piece`."""
    count = len(starts)
    if count < _TOGETHER_MIN or length % 4:
        return _one_by_one(piece, starts, [length] * count, seed)
    hashes = np.full(count, seed, np.uint32)
    for word in range(length // 4):
        _mix(hashes, np.ndarray((count,), "<u4", piece, starts.start + 4 * word, (starts.step,)))
    return _finished(hashes, length)


def key_hashes(piece: memoryview, starts: I64, lengths: I64, seed: int) -> U32:
    """Hash keys of any `lengths`, which begin at `starts` of `piece`."""
    longest_first = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[longest_first], lengths[longest_first]
    negative_words = -(lengths // 4)
    hashes = np.full(len(starts), seed, np.uint32)
    words = 0
    # Keys are sorted longest first, so those with one more word are a prefix that gets shorter.
    while (longer := int(np.searchsorted(negative_words, -words))) >= _TOGETHER_MIN:
        bytewise = np.ndarray((len(piece) - 3,), "<u4", piece, 0, (1,))
        _mix(hashes[:longer], bytewise[starts[:longer] + 4 * words])
        words += 1
    hashes = _finished(hashes, lengths.astype(np.uint32))
    left = np.flatnonzero((negative_words < -words) | (lengths % 4 != 0))
    hashes[left] = _one_by_one(piece, starts[left].tolist(), lengths[left].tolist(), seed)
    in_order = np.empty_like(hashes)
    in_order[longest_first] = hashes
    return in_order


def _one_by_one(piece: memoryview, starts: Iterable[int], lengths: Iterable[int], seed: int) -> U32:
    digest = mmh3.mmh3_32_uintdigest
    found = [digest(piece[start : start + length], seed) for start, length in zip(starts, lengths, strict=True)]
    return np.array(found, np.uint32)


def _mix(hashes: U32, words: npt.NDArray[Any]) -> None:
    """Do one round of murmur3 for every key; change `hashes`."""
    mixed = words * np.uint32(0xCC9E2D51)
    low = mixed << np.uint32(15)
    mixed >>= np.uint32(17)
    mixed |= low
    mixed *= np.uint32(0x1B873593)
    hashes ^= mixed
    np.left_shift(hashes, np.uint32(13), out=low)
    hashes >>= np.uint32(19)
    hashes |= low
    hashes *= np.uint32(5)
    hashes += np.uint32(0xE6546B64)


def _finished(hashes: U32, lengths: U32 | int) -> U32:
    hashes = hashes ^ np.uint32(lengths) if isinstance(lengths, int) else hashes ^ lengths
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes
