"""Changes of several partitions in the order of versions, in parts of any size; and the calls for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.questions.changes.service import (
    MAX_VERSIONS,
    PARTITIONS_AHEAD,
    ChangesHop,
    ChangesPlace,
    MergedChanges,
    VersionLines,
    decode_changes,
    decode_changes_hop,
    encode_changes,
    parse_versions,
)
from understudy_shared.questions.scan.hop import ScanHop
from understudy_shared.questions.scan.question import ScanQuestion
from understudy_shared.reads.bounds import BadBoundError, ReadVersion
from understudy_shared.reads.hop_fields import BadHopError
from understudy_shared.reads.tokens import OtherLineageError

FIRST = 5


class Partitions:
    """Partitions of so many changes in each version, in parts of `most` changes."""

    def __init__(self, counts: Sequence[Sequence[int]], most: int) -> None:
        self.counts, self.most = counts, most
        self.on_their_way = self.most_on_their_way = 0
        self.short: list[int] = []

    async def read(self, partition: int, place: ChangesPlace, is_short: bool) -> tuple[VersionLines, ...]:
        self.on_their_way += 1
        self.most_on_their_way = max(self.most_on_their_way, self.on_their_way)
        try:
            await asyncio.sleep(0)
        finally:
            self.on_their_way -= 1
        if is_short:
            self.short.append(partition)
        return tuple(self._part(partition, place))

    def _part(self, partition: int, place: ChangesPlace) -> list[VersionLines]:
        found: list[VersionLines] = []
        room, at = self.most, place.looked_at
        for version in range(place.version, FIRST + len(self.counts[partition])):
            count = self.counts[partition][version - FIRST]
            end = min(count, at + room)
            if found and end < count:
                break
            lines = b"".join(b"%d/%d/%d " % (version, partition, each) for each in range(at, end))
            found.append(VersionLines(version, lines, end - at, end, end == count, version * 10))
            room -= end - at
            if end < count or room <= 0:
                break
            at = 0
        return found


async def _merged(partitions: Partitions, last: int) -> list[bytes]:
    merged = MergedChanges(range(len(partitions.counts)), FIRST, last, partitions.read)
    await merged.begin()
    assert sorted(partitions.short) == list(range(len(partitions.counts))), "one short part of each"
    try:
        return [bytes(piece.lines) async for piece in merged.pieces()]
    finally:
        await merged.close()


@given(
    st.integers(1, 4).flatmap(
        lambda versions: st.lists(st.lists(st.integers(0, 7), min_size=versions, max_size=versions), min_size=1)
    ),
    st.integers(1, 5),
)
def test_changes_come_in_the_order_of_versions_and_then_of_partitions_whatever_the_parts(
    counts: list[list[int]], most: int
) -> None:
    partitions = Partitions(counts, most)
    last = FIRST + len(counts[0]) - 1
    found = b"".join(asyncio.run(_merged(partitions, last))).split()
    assert found == [
        b"%d/%d/%d" % (version, partition, each)
        for version in range(FIRST, last + 1)
        for partition in range(len(counts))
        for each in range(counts[partition][version - FIRST])
    ]
    assert partitions.most_on_their_way <= PARTITIONS_AHEAD + 1


async def test_what_cannot_be_read_of_any_partition_is_told_before_the_first_change() -> None:
    partitions = Partitions([[1], [1], [1], [1]], 5)

    async def read(partition: int, place: ChangesPlace, is_short: bool) -> tuple[VersionLines, ...]:
        if partition == 3:
            raise UnderstudyError("gone")
        return await partitions.read(partition, place, is_short)

    merged = MergedChanges(range(4), FIRST, FIRST, read)
    with pytest.raises(UnderstudyError, match="gone"):
        await merged.begin()
    await merged.close()
    assert partitions.on_their_way == 0


async def test_a_version_that_was_committed_anew_meanwhile_is_no_mixture_of_two() -> None:
    async def read(partition: int, place: ChangesPlace, is_short: bool) -> tuple[VersionLines, ...]:
        return (VersionLines(place.version, b"", 0, 0, True, 100 + partition),)

    merged = MergedChanges(range(2), FIRST, FIRST, read)
    await merged.begin()
    with pytest.raises(OtherLineageError, match=f"version {FIRST} was committed anew"):
        [piece async for piece in merged.pieces()]
    await merged.close()


@pytest.mark.parametrize(
    ("given_members", "at_fault"),
    [
        ({}, "from"),
        ({"from": "x"}, "from"),
        ({"from": "0"}, "from"),
        ({"from": "-1"}, "from"),
        ({"from": "2", "to": "1"}, "from"),
        ({"from": "1", "to": "9" * 30}, "to"),
        ({"from": "1", "to": str(MAX_VERSIONS + 1)}, "to"),
    ],
)
def test_a_bad_range_of_versions_names_its_member(given_members: dict[str, str], at_fault: str) -> None:
    with pytest.raises(BadBoundError) as caught:
        parse_versions(given_members)
    assert caught.value.where == at_fault
    assert caught.value.fix


def test_hops_and_parts_survive_their_way_and_other_versions_are_refused() -> None:
    version = ReadVersion(FIRST, of_any_commit=True)
    of = ("app", "lineage", "op0", "layout", 4, ScanQuestion("export", prefix=("a",)), 2, version)
    hop = ChangesHop(ScanHop(*of, None, None, 100, True, False, 5, True, 7), FIRST + 3, 12, is_short=True)
    assert decode_changes_hop(hop.encode()) == hop
    part = (VersionLines(FIRST, b"a\nb\n", 2, 3, True, None), VersionLines(FIRST + 1, b"", 0, 0, False, 17))
    body = b"".join(encode_changes(part))
    assert decode_changes(body, FIRST) == part
    for wrong, first in ((body[:-1] if part[-1].lines else body[:-3], FIRST), (body, FIRST + 1), (b"", FIRST)):
        with pytest.raises(BadHopError):
            decode_changes(wrong, first)
