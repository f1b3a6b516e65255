"""Tiers: merged so that lookups probe few, never so large that merging holds up the process, and honestly counted."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from understudy_node.engine.view import (
    TIER_ENTRIES_MAX,
    Tier,
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
