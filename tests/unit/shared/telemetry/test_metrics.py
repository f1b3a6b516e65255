"""Histograms, their families of metrics, and counts of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as Theirs
from prometheus_client.parser import text_string_to_metric_families

from understudy_shared.server.app import exposition
from understudy_shared.telemetry.metrics import (
    MAX_LABELLED,
    NO_STORE,
    Histogram,
    RequestCounts,
    histogram_family,
    upper_bound,
)

BOUNDS = (1, 2.5, 10, 1000)
VALUES = st.lists(st.sampled_from([0, 1, 1.0001, 2.5, 9, 10, 11, 1000, 1001]) | st.floats(0, 2000), max_size=30)


def samples(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@given(values=VALUES)
def test_it_is_written_as_the_library_writes_its_own(values: list[float]) -> None:
    ours = Histogram(BOUNDS)
    theirs = Theirs("h", "text", buckets=BOUNDS, registry=CollectorRegistry())
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    found, expected = (
        samples(exposition(families).decode()) for families in ([histogram_family("h", "text", ours)], theirs.collect())
    )
    assert found.pop(("h_sum", "")) == pytest.approx(expected.pop(("h_sum", "")))
    assert found == expected
    assert ours.total == len(values)


@given(values=VALUES.filter(bool), share=st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_the_first_bound_that_keeps_its_share(values: list[float], share: float) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    found = upper_bound(BOUNDS, histogram.counts, share)
    assert found is not None
    kept = sum(value <= found for value in values)
    assert kept >= share * len(values)
    assert all(sum(value <= bound for value in values) < share * len(values) for bound in BOUNDS if bound < found)


def test_names_that_change_for_ever_make_a_bounded_number_of_series() -> None:
    counts = RequestCounts()
    for number in range(MAX_LABELLED + 100):
        counts.of("lookup", f"store-{number}").count("found")
    labelled = {store for _, store, _ in counts.outcomes}
    assert len(labelled) <= MAX_LABELLED + 1
    assert counts.outcomes["lookup", NO_STORE, "found"] == 100
    assert sum(counts.outcomes.values()) == MAX_LABELLED + 100
