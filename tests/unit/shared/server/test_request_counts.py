"""Requests are counted under the store that they name, and a name that is no store makes no series."""

from __future__ import annotations

from understudy_shared.telemetry.metrics import MAX_LABELLED, NO_STORE, RequestCounts


def test_requests_are_counted_by_operation_store_and_outcome() -> None:
    counts = RequestCounts()
    lookups = counts.of("lookup", "words")
    lookups.outcomes["found"] += 2
    lookups.count("deadline")
    counts.of("batch", "words").count("answered")
    assert counts.of("lookup", "words") is lookups
    assert counts.outcomes == {
        ("batch", "words", "answered"): 1,
        ("lookup", "words", "deadline"): 1,
        ("lookup", "words", "found"): 2,
    }


def test_names_that_change_for_ever_make_a_bounded_number_of_series() -> None:
    counts = RequestCounts()
    for number in range(MAX_LABELLED + 100):
        counts.of("lookup", f"store-{number}").count("found")
    labelled = {store for _, store, _ in counts.outcomes}
    assert len(labelled) <= MAX_LABELLED + 1
    assert counts.outcomes["lookup", NO_STORE, "found"] == 100
    assert sum(counts.outcomes.values()) == MAX_LABELLED + 100
