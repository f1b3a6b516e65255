"""The metrics of several processes as one service's: nothing is lost, counted twice, or shown better than it is."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from understudy_shared.processes.group import exposition
from understudy_shared.processes.metric_sums import (
    GAUGES,
    Family,
    MetricSample,
    MetricSums,
    family_of,
    from_document,
    to_document,
)

REQUESTS = "understudy_requests_total"
WORKERS = st.integers(0, 3)


def requests(**counts: int) -> Family:
    family = CounterMetricFamily("understudy_requests", "Requests", labels=("outcome",))
    for outcome, count in counts.items():
        family.add_metric((outcome,), count)
    return family_of(family)


def gauge(name: str, value: float) -> Family:
    return family_of(GaugeMetricFamily(name, "A gauge", value))


def values(families: Iterable[Family], name: str) -> dict[str, float]:
    """The samples of a name, by their labels in order."""
    return {
        ",".join(text for _, text in sample.labels): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def sums_of(*reports: Sequence[Family]) -> MetricSums:
    sums = MetricSums()
    for number, report in enumerate(reports):
        sums.reported(number, report)
    return sums


def test_counters_are_added_by_their_labels() -> None:
    sums = sums_of([requests(found=3, absent=1)], [requests(found=4, refused=2)])
    assert values(sums.families({0, 1}), REQUESTS) == {"found": 7, "absent": 1, "refused": 2}


def test_a_summary_is_added_in_both_its_parts() -> None:
    reports = [
        [family_of(SummaryMetricFamily("hop_seconds", "Hops", count, total))] for count, total in ((2, 0.5), (3, 1.5))
    ]
    found = sums_of(*reports).families({0, 1})
    assert (values(found, "hop_seconds_count"), values(found, "hop_seconds_sum")) == ({"": 5}, {"": 2.0})


@pytest.mark.parametrize(
    ("name", "together"),
    [
        ("understudy_connections", 7.0),
        ("understudy_router_in_flight", 7.0),
        ("understudy_replica_lag_batches", 5.0),
        ("understudy_router_degraded", 5.0),
        ("understudy_replica_position", 2.0),
        ("understudy_end_offset_position", 2.0),
    ],
)
def test_a_gauge_is_added_or_the_worst_one_counts(name: str, together: float) -> None:
    assert values(sums_of([gauge(name, 2)], [gauge(name, 5)]).families({0, 1}), name) == {"": together}


def test_a_gauge_without_a_rule_keeps_a_series_for_each_process() -> None:
    found = sums_of([gauge("new_gauge", 2)], [gauge("new_gauge", 5)]).families({0, 1})
    assert values(found, "new_gauge") == {"0": 2, "1": 5}


def test_what_is_the_same_in_each_process_stays_one_series() -> None:
    build = family_of(InfoMetricFamily("understudy_build", "Release", {"version": "1"}))
    assert values(sums_of([build], [build]).families({0, 1}), "understudy_build_info") == {"1": 1}


def test_a_process_that_did_not_answer_now_keeps_its_counts_and_loses_its_gauges() -> None:
    sums = sums_of(
        [requests(found=3), gauge("understudy_connections", 2)], [requests(found=4), gauge("understudy_connections", 5)]
    )
    found = sums.families({1})
    assert (values(found, REQUESTS), values(found, "understudy_connections")) == ({"found": 7}, {"": 5})


def test_what_a_process_counted_stays_when_it_has_ended_and_another_counts_on() -> None:
    sums = sums_of([requests(found=3), gauge("understudy_connections", 2)])
    sums.ended(0)
    assert values(sums.families(set()), REQUESTS) == {"found": 3}
    assert values(sums.families(set()), "understudy_connections") == {}
    sums.reported(0, [requests(found=1)])
    assert values(sums.families({0}), REQUESTS) == {"found": 4}


Step = tuple[str, int, int]
STEPS = st.lists(st.tuples(st.sampled_from(["count", "report", "end"]), WORKERS, st.integers(0, 5)), max_size=40)


@given(steps=STEPS)
def test_a_sum_never_falls_and_is_all_that_was_reported(steps: list[Step]) -> None:
    sums, counts, reported, ended = MetricSums(), Counter[int](), Counter[int](), 0
    before = 0.0
    for step, number, amount in steps:
        if step == "count":
            counts[number] += amount
        elif step == "report":
            reported[number] = counts[number]
            sums.reported(number, [requests(found=counts[number])])
        else:
            ended += reported.pop(number, 0)
            counts[number] = 0
            sums.ended(number)
        now = values(sums.families(set()), REQUESTS).get("found", 0.0)
        assert now >= before
        assert now == sum(reported.values()) + ended
        before = now


@given(found=st.lists(st.tuples(WORKERS, st.floats(0, 100)), min_size=1), seed=st.integers())
def test_the_order_in_which_processes_report_changes_nothing(found: list[tuple[int, float]], seed: int) -> None:
    reports = {number: [gauge(name, value) for name in GAUGES] for number, value in found}
    shuffled = list(reports.items())
    random.Random(seed).shuffle(shuffled)
    one, other = MetricSums(), MetricSums()
    for number, report in reports.items():
        one.reported(number, report)
    for number, report in shuffled:
        other.reported(number, report)
    assert one.families(reports) == other.families(reports)


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
FAMILIES = st.lists(
    st.builds(
        Family, st.text(), st.sampled_from(["gauge", "counter"]), st.text(),
        st.lists(st.builds(MetricSample, st.text(), st.lists(st.tuples(st.text(), st.text())).map(tuple), FLOATS)),
    )
)  # fmt: skip


@given(families=FAMILIES)
def test_families_come_back_from_their_document(families: list[Family]) -> None:
    assert from_document(to_document(families)) == families


def test_a_value_without_a_number_in_json_comes_back_as_none_of_them() -> None:
    (family,) = from_document(to_document([gauge("g", math.inf)]))
    assert math.isnan(family.samples[0].value)


@pytest.mark.parametrize(
    "document", [None, 3, [3], [["name"]], [["name", "gauge", "text", 3]], [["n", "gauge", "t", [[1]]]]]
)
def test_what_is_no_document_of_families_is_refused(document: object) -> None:
    with pytest.raises(ValueError, match="no metrics"):
        from_document(document)


def test_the_sums_are_written_as_prometheus_reads_them() -> None:
    families: list[Metric] = [
        each.metric() for each in sums_of([requests(found=3)], [requests(found=4)]).families({0, 1})
    ]
    (parsed,) = text_string_to_metric_families(exposition(families).decode())
    assert [(sample.name, sample.labels, sample.value) for sample in parsed.samples] == [
        (REQUESTS, {"outcome": "found"}, 7.0)
    ]
