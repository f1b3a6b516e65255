"""Pages have every row once, in order, and end by rows, bytes or time, however rows lie in partitions (Q10)."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import orjson
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.questions.scan import page as pages
from understudy_shared.questions.scan.hop import decode_part, encode_part
from understudy_shared.questions.scan.page import (
    PartPage,
    Place,
    ReadPart,
    Room,
    ScanPage,
    read_ordered_page,
    read_page,
)
from understudy_shared.questions.scan.question import MAX_SCAN_BYTES
from understudy_shared.questions.scan.where import compile_order
from understudy_shared.spark.types import Field, LongType, StringType, StructType

LATER_S = float("inf")

Stored = list[list[int]]
"""The keys, or the ranks, of the rows of each partition."""


def reader_of(stored: Stored, *, steps: int = 10**9) -> ReadPart:
    """A reader of keys that looks at `steps` of them at once; odd keys are left out."""

    async def read(place: Place, room: Room) -> PartPage:
        rows: list[int] = []
        after = place.after
        looked_at, is_end = 0, True
        for key in stored[place.partition]:
            raw = key.to_bytes(4)
            if place.after is not None and raw <= place.after:
                continue
            if looked_at >= steps or (key % 2 == 0 and room.rows is not None and len(rows) == room.rows):
                is_end = False
                break
            looked_at += 1
            after = raw
            rows += [key] if key % 2 == 0 else []
        printed = b",".join(str(row).encode() for row in rows)
        return PartPage(printed, len(rows), looked_at, None if is_end else after, is_end, {"version": 7}, 5, "pass")

    return read


async def all_pages(stored: Stored, limit: int | None, *, steps: int = 10**9) -> list[ScanPage]:
    found = []
    at: Place | None = Place(0)
    while at is not None:
        page = await read_page(at, range(len(stored)), reader_of(stored, steps=steps), limit=limit, until_s=LATER_S)
        found.append(page)
        at = page.next
    return found


STORES = st.lists(st.lists(st.integers(0, 1_000), unique=True).map(sorted), min_size=1, max_size=5)


@given(STORES, st.integers(1, 7), st.integers(1, 5))
async def test_pages_of_any_size_and_any_pace_have_every_row_once(stored: Stored, limit: int, steps: int) -> None:
    wanted = [key for keys in stored for key in keys if key % 2 == 0]
    pages = await all_pages(stored, limit, steps=steps)
    assert [
        row for page in pages for row in orjson.loads(page.body({"store": "s"}, {"next_cursor": None}))["rows"]
    ] == wanted
    assert all(page.found <= limit for page in pages)
    pages = await all_pages(stored, limit)
    assert all(page.found == limit for page in pages[:-1]), "only the last page has room left"
    assert len(pages) == max(1, -(-len(wanted) // limit)), "a page at the end has no next one"


async def test_a_page_whose_time_is_over_has_read_one_partition_and_goes_on_with_the_next() -> None:
    page = await read_page(Place(0), (0, 1), reader_of([[2], [4]]), limit=9, until_s=0.0)
    assert (page.found, page.next, page.partitions) == (1, Place(1), [0])


async def test_all_partitions_of_a_page_share_its_bytes() -> None:
    row = b"9" * 1_000
    lefts: list[int] = []

    async def read(place: Place, room: Room) -> PartPage:
        lefts.append(room.bytes)
        fits = min(400, room.bytes // len(row))
        return PartPage(row * fits, fits, fits, None if fits == 400 else b"", fits == 400, {"version": 7}, 5, "pass")

    page = await read_page(Place(0), range(9), read, limit=9_999, until_s=LATER_S)
    assert lefts == [MAX_SCAN_BYTES, MAX_SCAN_BYTES - 400_000, MAX_SCAN_BYTES - 800_000]
    assert sum(map(len, page.rows)) <= MAX_SCAN_BYTES
    assert page.next == Place(2, b"")


PAGE_BYTES = 40


def row_of(rank: int) -> bytes:
    """Its rank as often as it says, so that rows differ in size."""
    return b'"%b"' % (str(rank).encode() * (1 + rank % 4))


def ordered_reader_of(stored: Stored, *, is_reversed: bool) -> ReadPart:
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


async def all_ordered_pages(stored: Stored, limit: int, *, is_reversed: bool) -> list[ScanPage]:
    found = []
    at: Place | None = Place(0)
    read = ordered_reader_of(stored, is_reversed=is_reversed)
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
    pages = await all_ordered_pages(stored, limit, is_reversed=is_reversed)
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
