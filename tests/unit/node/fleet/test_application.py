"""One application of a fleet: what its line in the list says."""

from __future__ import annotations

from understudy_node.fleet.application import _greatest


def test_the_greatest_lag_of_replicas_is_unknown_where_that_of_one_is() -> None:
    assert _greatest([8, 40, 0]) == 40
    assert _greatest([8, None]) is None
    assert _greatest([]) is None
