"""Sorts an arena's keys by their bytes: some bits at a time, and then only keys whose earlier bits are equal; and keeps
their order beside them.

The rule: one kind of step. It puts the group that a key is in, the next bits of the key and the key's place into
one number of 64 bits, and sorts the numbers. Keys of a store share long stretches (null bits, field offsets): bits in
which no two keys differ take no step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from understudy_node.engine.arena_format import Header, order_path
from understudy_node.engine.arena_scan import U8, lengths_at
from understudy_node.engine.arena_sums import read_sealed, write_sealed

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Offsets = npt.NDArray[Any]
"""The offsets of records, as unsigned integers of 4 or 8 bytes."""

_WORD_BYTES: Final = 8
_BLOCK: Final = 65_536
_STEP: Final = 16 * _BLOCK


class _Ties(NamedTuple):
    """Keys that equal another one in all bits that were looked at: their places in the order, ascending, and the number
    of the group of each, counted from 0.
    """

    places: I64
    groups: U64


def key_order(directory: Path, header: Header, records: U8, offsets: Offsets) -> Generator[None, None, memoryview]:
    """Return the offsets of an arena's records in the order of their keys. Yield after each step.

    An order is read where one was written, and else found and written: another process, or the next one, sorts nothing.
    """
    path, head = order_path(directory), header.encoded()
    with suppress(OSError):
        body = read_sealed(path)
        if body is not None and len(body) == len(head) + offsets.nbytes and body.startswith(head):
            return np.frombuffer(body, offsets.dtype, offset=len(head)).data
    order = np.sort(offsets)
    yield
    yield from sort_offsets(records, order)
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        write_sealed(unfinished, head + order.tobytes())
        unfinished.replace(path)
    except OSError:  # No room for it, or the arena was removed.
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
    return order.data


def sort_offsets(data: U8, order: Offsets) -> Iterator[None]:
    """Put `order`, the offsets of all records as they lie in the file, into the order of their keys. Yield after each
    step; the longest takes 15 ms per million keys, mostly without the GIL.
    """
    ties = _Ties(np.arange(len(order)), np.zeros(len(order), np.uint64))
    lengths = yield from _of_each(order, ties.places, partial(_lengths, data))
    shortest, longest = (int(lengths.min()), int(lengths.max())) if len(order) else (0, 0)
    for position in range(0, longest, _WORD_BYTES):
        words_of = _words if position + _WORD_BYTES <= shortest else _last_words
        words = yield from _of_each(order, ties.places, partial(words_of, data, position))
        ties = yield from _sort_ties(order, ties, words)
    # The words had zeros behind the end of a key: of keys that are equal even so, the shorter one comes first.
    lengths = yield from _of_each(order, ties.places, partial(_lengths, data))
    yield from _sort_ties(order, ties, lengths)


def _of_each(order: Offsets, places: I64, numbers_of: Callable[[Offsets], U64]) -> Generator[None, None, U64]:
    """Return a number for the record at each place: block by block, so that what is made on the way stays in cache."""
    numbers = np.empty(len(places), np.uint64)
    for at in range(0, len(places), _BLOCK):
        numbers[at : at + _BLOCK] = numbers_of(order[places[at : at + _BLOCK]])
        if at % _STEP == 0:
            yield
    return numbers


def _sort_ties(order: Offsets, ties: _Ties, words: U64) -> Generator[None, None, _Ties]:
    """Sort tied keys by a word of each; return those that are still tied."""
    places, groups = ties
    if not len(places):
        return ties
    words -= words.min()
    bits = int(words.max()).bit_length()
    while bits and len(places):
        place_bits, group_bits = len(places).bit_length(), int(groups[-1]).bit_length()
        # As many bits of the word as there is room for; the others in the next step, among those still tied.
        bits_left = max(bits - (64 - place_bits - group_bits), 0)
        numbers = words >> np.uint64(bits_left)
        numbers <<= np.uint64(place_bits)
        numbers |= np.arange(len(places), dtype=np.uint64)
        if group_bits:
            groups <<= np.uint64(64 - group_bits)
            numbers |= groups
        yield
        numbers.sort()
        yield
        by_key = (numbers & np.uint64((1 << place_bits) - 1)).view(np.int64)
        order[places] = order[places[by_key]]
        yield
        numbers >>= np.uint64(place_bits)
        is_tied, groups = _tied(numbers)
        words = words[by_key[is_tied]] & np.uint64((1 << bits_left) - 1)
        places, bits = places[is_tied], bits_left
        yield
    return _Ties(places, groups)


def _tied(numbers: U64) -> tuple[npt.NDArray[np.int64], U64]:
    """Return which of sorted numbers equal a neighbour, and the number of the group of each of these."""
    equals_next = numbers[1:] == numbers[:-1]
    is_tied = np.zeros(len(numbers), np.bool_)
    is_tied[1:] = equals_next
    is_first = ~is_tied
    is_tied[:-1] |= equals_next
    at = np.flatnonzero(is_tied)
    return at, np.cumsum(is_first[at], dtype=np.uint64) - np.uint64(1)


def _lengths(data: U8, offsets: Offsets) -> U64:
    return lengths_at(data, offsets).view(np.uint64)


def _words(data: U8, position: int, offsets: Offsets) -> U64:
    """Return eight bytes of each key from `position` on, as a number."""
    at = offsets.astype(np.int64) + (4 + position)
    return np.ndarray((len(data) - 7,), ">u8", data.data, strides=(1,))[at].astype(np.uint64)


def _last_words(data: U8, position: int, offsets: Offsets) -> U64:
    """Return the same where keys may end: with zeros behind their end."""
    lengths = lengths_at(data, offsets)
    # Of a key that ends before `position` no bit is kept: any bytes will do. No word of others reaches the end of the
    # file: eight bytes or more follow each key.
    words = _words(data, position, np.minimum(offsets, len(data) - 12 - position))
    missing_bits = (np.clip(position + _WORD_BYTES - lengths, 0, _WORD_BYTES) * 8).astype(np.uint64)
    for _ in range(2):  # a shift by 64 bits at once is not defined
        words >>= missing_bits >> np.uint64(1)
    for _ in range(2):
        words <<= missing_bits >> np.uint64(1)
    return words
