"""The token of a snapshot lease: a position with a lease, read wherever a snapshot is, and refused when altered."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.plausible import CEILING
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.bound_parsing import bound_fields, parse_bound
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.tokens import (
    LEASE_PREFIX,
    MAX_TTL_S,
    BadPositionError,
    Position,
    SnapshotLease,
    decode_lease,
    decode_snapshot,
    new_lease,
)

POSITIONS = st.builds(
    Position, st.text().map(ApplicationId), st.text().map(Lineage), st.integers(0, CEILING), st.none() | st.integers()
)
LEASES = st.builds(SnapshotLease, POSITIONS, st.text(min_size=1, max_size=32), st.integers(1, MAX_TTL_S))
AT = Position(ApplicationId("flights"), Lineage("6f1c"), 418, 1)


@given(LEASES)
def test_a_token_says_what_was_leased(lease: SnapshotLease) -> None:
    token = lease.encode()
    if len(token) <= 2048:
        assert decode_lease(token) == lease
        assert decode_snapshot(token) == (lease.position, lease)
    assert decode_snapshot(AT.encode()) == (AT, None)


@given(LEASES, st.data())
def test_a_token_that_was_altered_anywhere_is_refused(lease: SnapshotLease, data: st.DataObject) -> None:
    token = lease.encode()
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("ABCxyz019-_.=%").filter(lambda each: each != token[at]))
    for altered in (token[:at] + other + token[at + 1 :], token[:at], token + other):
        with pytest.raises(BadPositionError):
            decode_snapshot(altered)


@pytest.mark.parametrize(
    "fields",
    [
        ["a", "l", 3, 5, "id", 0],
        ["a", "l", 3, 5, "id", MAX_TTL_S + 1],
        ["a", "l", -3, 5, "id", 60],
        ["a", "l", 10**18, 5, "id", 60],
        ["a", "l", True, 5, "id", 60],
        ["a", "l", 3, 5, "", 60],
        ["a", "l", 3, 5, "x" * 33, 60],
        ["a", "l", 3, 5, "id"],
    ],
    ids=str,
)
def test_fields_that_no_service_issues_are_refused(fields: list[object]) -> None:
    text = json.dumps([*fields, "0" * 12], separators=(",", ":"))
    token = LEASE_PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    with pytest.raises(BadPositionError, match="fields are not as they were issued"):
        decode_lease(token)


def test_a_bound_takes_a_lease_for_a_position_and_a_hop_carries_the_position_alone() -> None:
    lease = new_lease(AT, 60)
    bound = parse_bound({"snapshot": lease.encode()})
    assert (bound.snapshot, bound.lease) == (AT, lease)
    assert bound.read_version == parse_bound({"snapshot": AT.encode()}).read_version
    assert bound_fields(bound) == bound_fields(parse_bound({"snapshot": AT.encode()}))
    assert new_lease(AT, 60) != lease, "each has its own id"
    with pytest.raises(BadBoundError):
        parse_bound({"snapshot": lease.encode(), "max_lag": "1"})
    with pytest.raises(BadPositionError, match="position token"):
        parse_bound({"min_position": lease.encode()})
