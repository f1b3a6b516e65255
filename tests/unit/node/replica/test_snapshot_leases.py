"""The table of snapshot leases: bounded, ended by time, renewed by use; and what pins of leased versions cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.node.replica.test_pinned_versions import TASKS, shown

from understudy_node.engine.base import EmptyBase
from understudy_node.engine.view import View
from understudy_node.replica.pinned_versions import HOLD_MS, LeaseTable, PinnedViews, leased_version
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.http.problems import ProblemError
from understudy_shared.reads.bounds import ReadVersion
from understudy_shared.reads.tokens import Position, SnapshotLease

TTL_S = 60
TTL_MS = 1000 * TTL_S


def lease(version: int, lease_id: str = "a", committed_at_us: int | None = 7) -> SnapshotLease:
    position = Position(ApplicationId("a"), Lineage("l"), version, committed_at_us)
    return SnapshotLease(position, lease_id, TTL_S)


def grant(leases: LeaseTable, each: SnapshotLease, now_ms: float = 0) -> None:
    leases.grant(each, now_ms=now_ms)


@given(
    st.lists(
        st.tuples(st.sampled_from(["grant", "renew", "release", "wait"]), st.integers(0, 5), st.integers(1, 4)),
        max_size=40,
    )
)
def test_leases_are_within_the_limits_and_each_version_is_kept_until_its_last_lease_ends(
    events: Sequence[tuple[str, int, int]],
) -> None:
    """Q65, Q66."""
    leases = LeaseTable(max_leases=4, max_versions=3)
    ends: dict[str, tuple[int, float]] = {}
    now_ms = 0.0
    for what, number, version in events:
        name = f"{number}-{version}"
        if what == "wait":
            now_ms += number * TTL_MS / 4
        ends = {each: (kept, until) for each, (kept, until) in ends.items() if until > now_ms}
        versions = {kept for kept, _ in ends.values()}
        if what == "grant":  # a router may ask twice
            has_room = name in ends or (len(ends) < 4 and (version in versions or len(versions) < 3))
            if has_room:
                grant(leases, lease(version, name), now_ms)
                ends[name] = version, now_ms + TTL_MS
            else:
                with pytest.raises(ProblemError) as refused:
                    grant(leases, lease(version, name), now_ms)
                assert 1 <= refused.value.problem.retry_after_s <= TTL_S
        elif what == "renew":
            came_back = leases.renew(lease(version, name), now_ms=now_ms)
            if name in ends:
                assert not came_back
                if ends[name][1] - now_ms <= TTL_MS * 2 / 3:
                    ends[name] = version, now_ms + TTL_MS
            else:
                assert came_back == (len(ends) < 2 and (version in versions or not versions)), "half of the room"
                if came_back:
                    ends[name] = version, now_ms + TTL_MS
        elif what == "release":
            assert leases.release(name) == (ends.pop(name, None) is not None)
        leases.expire(now_ms)
        assert len(leases) == len(ends)
        latest = {kept: max(until for of, until in ends.values() if of == kept) for kept, _ in ends.values()}
        assert {version.number: until for version, until in leases.until_ms.items()} == latest


def test_a_token_with_the_id_of_another_lease_renews_nothing() -> None:
    leases = LeaseTable()
    grant(leases, lease(3))
    assert not leases.renew(lease(9), now_ms=TTL_MS - 1)
    assert leases.held(TTL_MS) == []
    assert leases.until_ms == {}


def test_a_leased_version_outlives_the_usual_time_and_goes_with_its_lease() -> None:
    leases = LeaseTable()
    pinned, old = PinnedViews(leases), shown(View.of(EmptyBase(), 1), 7)
    grant(leases, lease(1))
    pinned.pin(TASKS[0], old, 0)
    pinned.expire(HOLD_MS + 1)
    assert pinned.find(TASKS[0], ReadVersion(1, 7), HOLD_MS + 1) is old
    pinned.expire(2 * HOLD_MS + 1)
    leases.expire(TTL_MS)
    pinned.expire(2 * HOLD_MS + 2)
    assert len(pinned) == 0


def test_a_replica_that_shows_a_leased_version_later_keeps_it_as_it_passes() -> None:
    """Q68: it was behind when the version was leased."""
    leases = LeaseTable()
    pinned = PinnedViews(leases)
    grant(leases, lease(2))
    for version in (1, 2, 3):
        pinned.published(TASKS[0], shown(View.of(EmptyBase(), version), 7), version)
    found = pinned.find(TASKS[0], leased_version(lease(2)), HOLD_MS + 9)
    assert (len(pinned), found is not None and found.version) == (1, 2)


def test_above_a_limit_leased_versions_go_last() -> None:
    leases = LeaseTable()
    pinned = PinnedViews(leases, max_disk_bytes=100, max_views=2)
    grant(leases, lease(1))
    for now_ms, version in enumerate((1, 2, 3, 4)):
        pinned.pin(TASKS[0], shown(View.of(EmptyBase(), version), 7), now_ms, disk_bytes=40)
    assert [pinned.find(TASKS[0], ReadVersion(each, 7), 5) is not None for each in (1, 2, 3, 4)] == [
        True,
        False,
        False,
        True,
    ]
    assert sum(each.disk_bytes for each in pinned.by_version().values()) <= 100


@pytest.mark.parametrize("held", [1, 10, 50])
@given(per_version=st.integers(1, 30), keys=st.integers(200, 400))
def test_held_versions_cost_what_the_model_says(held: int, per_version: int, keys: int) -> None:
    """Q70: one costs at most one overlay more, whatever its age; each further one no more than what its batches and
    the merges of tiers left behind: 1.5 times the changes of all, and one overlay.
    """
    leases = LeaseTable()
    pinned = PinnedViews(leases, max_bytes=1 << 40)
    store = View.of(EmptyBase(), 0).with_changes({b"%06d" % key: bytes(20) for key in range(keys)}, 1)
    one_change = -(-store.overlay_bytes // keys)
    for version in range(2, 62):
        changed = {b"%06d" % (version * 31 * (each + 1) % keys): bytes(20) for each in range(per_version)}
        store = store.with_changes(changed, version)
        if version < 2 + held:
            grant(leases, lease(version, str(version)))
            pinned.pin(TASKS[0], shown(store, 7), 0)
        pinned.published(TASKS[0], shown(store, 7), 0)
    assert len(pinned) == held
    changes = held * per_version * one_change
    assert pinned.extra_bytes <= 1.5 * (store.overlay_bytes + changes * tiers_of_changes(held))


def tiers_of_changes(held: int) -> int:
    """How often a change is in a tier at most, while tiers are merged by doubling."""
    return max(1, held.bit_length())
