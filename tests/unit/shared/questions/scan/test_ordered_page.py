"""Pages of ordered rows have every row once, in order, however rows lie in partitions and whatever fits into a part."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.questions.scan import page as pages
from understudy_shared.questions.scan.hop import decode_part, encode_part
from understudy_shared.questions.scan.page import PartPage, Place, ReadPart, Room, ScanPage, read_ordered_page
from understudy_shared.questions.scan.where import compile_order
from understudy_shared.spark.types import Field, LongType, StringType, StructType

PAGE_BYTES = 40

Stored = list[list[int]]
"""The ranks of the rows of each partition. A row is its rank as often as it says, so that rows differ in size."""


def row_of(rank: int) -> bytes:
    return b'"%b"' % (str(rank).encode() * (1 + rank % 4))


def reader_of(stored: Stored, *, is_reversed: bool) -> ReadPart:
    async def read(place: Place, room: Room) -> PartPage:
        after = None if place.after is None else int.from_bytes(place.after)
        ranks = sorted(stored[place.partition], reverse=is_reversed)
        behind = [each for each in ranks if after is None or (each < after if is_reversed else each > after)]
        taken: list[int] = []
        left = room.bytes
        for rank in behind[: room.rows]:
            left -= len(row_of(rank)) + 1
            if taken and left < 0:
                break
            taken.append(rank)
        is_end = len(taken) == len(behind)
        rows = b",".join(map(row_of, taken))
        ranked = tuple((rank.to_bytes(4), len(row_of(rank))) for rank in taken)
        last = None if is_end else ranked[-1][0]
        part = PartPage(rows, len(taken), len(ranks), last, is_end, {"version": 7}, 5, "pass", ranked)
        assert decode_part(encode_part(part)) == part
        return part

    return read


async def all_pages(stored: Stored, limit: int, *, is_reversed: bool) -> list[ScanPage]:
    found = []
    at: Place | None = Place(0)
    read = reader_of(stored, is_reversed=is_reversed)
    with patch.object(pages, "MAX_SCAN_BYTES", PAGE_BYTES):
        while at is not None:
            page = await read_ordered_page(
                at, range(len(stored)), read, limit=limit, until_s=0.0, is_reversed=is_reversed
            )
            found.append(page)
            at = page.next
    return found


RANKS = st.sets(st.integers(0, 2_000), max_size=40)


@given(RANKS, st.integers(1, 4), st.integers(1, 9), st.booleans(), st.randoms(use_true_random=False))
async def test_pages_of_any_size_have_every_row_once_in_order(
    ranks: set[int], partitions: int, limit: int, is_reversed: bool, rng: object
) -> None:
    stored: Stored = [[] for _ in range(partitions)]
    for rank in ranks:
        stored[rng.randrange(partitions)].append(rank)  # type: ignore[attr-defined]
    pages = await all_pages(stored, limit, is_reversed=is_reversed)
    assert [row for page in pages for row in page.rows] == [row_of(rank) for rank in sorted(ranks, reverse=is_reversed)]
    assert all(0 < page.found <= limit for page in pages[:-1])
    assert all(len(b",".join(page.rows)) <= PAGE_BYTES or page.found == 1 for page in pages)
    assert pages[0].looked_at == len(ranks)


VALUES = st.tuples(st.none() | st.text("a\0\x01b", max_size=4), st.none() | st.integers(-3, 3))


@given(st.lists(VALUES, min_size=2))
def test_no_bytes_of_an_order_are_the_beginning_of_others(values: list[tuple[str | None, int | None]]) -> None:
    order = compile_order(StructType((Field("s", StringType()), Field("n", LongType()))))
    assert order is not None
    for left, right in pairwise(sorted(set(values), key=order)):
        assert order(left) < order(right)
        assert not order(right).startswith(order(left))
        assert _comparable(left) < _comparable(right)


def _comparable(value: tuple[str | None, int | None]) -> tuple[str, int]:
    text, number = value
    return "" if text is None else "\x02" + text, -9 if number is None else number
