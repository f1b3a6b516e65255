"""Tiers: merged so that lookups probe few, never so large that merging holds up the process, and honestly counted."""

from __future__ import annotations

import os
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_node.engine.tier import (
    TIER_ENTRIES_MAX,
    Tier,
    measured_bytes,
    release_tiers,
    with_newest,
    without_settled,
)


def _tier(version: int, size: int) -> Tier:
    return Tier({b"%d.%d" % (version, at): b"" for at in range(size)}, first_version=version, last_version=version)


@given(st.lists(st.integers(1, 300), max_size=60))
def test_tiers_double_in_size_keep_their_versions_apart_and_lose_nothing(sizes: list[int]) -> None:
    tiers: tuple[Tier, ...] = ()
    for version, size in enumerate(sizes, start=1):
        tiers = with_newest(tiers, _tier(version, size))
    lengths = [len(tier.changes) for tier in tiers]
    assert sum(lengths) == sum(sizes)
    assert all(newer * 2 < older for newer, older in pairwise(lengths))
    covered = [version for tier in reversed(tiers) for version in range(tier.first_version, tier.last_version + 1)]
    assert covered == list(range(1, len(sizes) + 1))


def test_no_merge_makes_a_tier_of_more_than_the_largest_size() -> None:
    tiers: tuple[Tier, ...] = ()
    for version in range(1, 21):
        tiers = with_newest(tiers, _tier(version, TIER_ENTRIES_MAX // 4))
    lengths = [len(tier.changes) for tier in tiers]
    assert max(lengths) <= TIER_ENTRIES_MAX
    assert len(lengths) <= 10, "tiers that would fit together were left apart"


def test_a_merge_leaves_the_merged_tiers_as_they_were() -> None:
    older = Tier({b"a": b"1", b"b": b"1"}, first_version=1, last_version=1)
    newer = Tier({b"a": None, b"c": b"2"}, first_version=2, last_version=2)
    (merged,) = with_newest((older,), newer)
    assert merged.changes == {b"a": None, b"b": b"1", b"c": b"2"}
    assert older.changes == {b"a": b"1", b"b": b"1"}
    assert newer.changes == {b"a": None, b"c": b"2"}


def test_only_tiers_wholly_settled_are_dropped() -> None:
    tiers = (
        Tier({b"a": b""}, first_version=6, last_version=8),
        Tier({b"a": b""}, first_version=4, last_version=5),
        Tier({b"a": b""}, first_version=1, last_version=3),
    )
    assert without_settled(tiers, 3) == tiers[:2]
    assert without_settled(tiers, 4) == tiers[:2]
    assert without_settled(tiers, 7) == tiers[:1]
    assert without_settled(tiers, 8) == ()


@pytest.mark.parametrize(("key_bytes", "value_bytes", "count"), [(32, 56, 20_000), (8, 8, 5_000), (40, 400, 10_000)])
def test_the_bytes_counted_are_the_bytes_allocated(key_bytes: int, value_bytes: int, count: int) -> None:
    tracemalloc.start()
    try:
        changes: dict[bytes, bytes | None] = {os.urandom(key_bytes): os.urandom(value_bytes) for _ in range(count)}
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert measured_bytes(changes) == pytest.approx(allocated, rel=0.15)
    assert measured_bytes(changes) >= allocated * 0.98


def test_the_key_order_that_a_scan_needs_is_counted_once_it_exists() -> None:
    tier = _tier(1, 1_000)
    before = tier.resident_bytes
    assert [key for key, _ in tier.scan(None, None)] == sorted(tier.changes)
    assert tier.resident_bytes - before == 8_000


def test_replaced_tiers_are_let_go_of_one_at_a_time() -> None:
    tiers = [_tier(version, 2) for version in (1, 2, 3)]
    assert [len(tiers) for _ in release_tiers(tiers)] == [2, 1, 0]
