"""A page ends by its rows, its bytes or its time, goes on behind what it has, and is the last only at the end (Q10)."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.questions.scan.page import PartPage, Place, ReadPart, Room, ScanPage, read_page
from understudy_shared.questions.scan.question import MAX_SCAN_BYTES

LATER_S = float("inf")

Stored = list[list[int]]
"""The keys of each partition, in order."""


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
