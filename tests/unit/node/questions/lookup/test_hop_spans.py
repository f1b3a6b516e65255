"""Each traced reader of a hop has a span below its own attempt, of the key it asked for; and a hop has not too many."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from understudy_node.questions.lookup.hop import MAX_SPANS, record_hop
from understudy_shared.questions.lookup.hop import (
    ABSENT,
    FOUND,
    PROBLEM,
    HopGroup,
    HopKey,
    HopOutcome,
    HopRequest,
    HopTrace,
)
from understudy_shared.reads.bounds import NO_BOUND
from understudy_shared.telemetry.spans import Attributes, Kind, Trace

TRACE = Trace("a" * 32, "b" * 16, True)
OUTCOMES = [HopOutcome(FOUND, b""), HopOutcome(ABSENT, b""), HopOutcome(PROBLEM, b'{"type":"not-owner"}')]
TEXTS = ["found", "absent", "not-owner"]


class Recorder:
    """Spans as they were begun and ended; a trace that is not sampled has none."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def begin(
        self, method: str, route: str, kind: Kind, parent: Trace | None, attributes: Attributes, *, ago_s: float = 0.0
    ) -> OneSpan | None:
        assert parent is not None
        if not parent.is_sampled:
            return None
        self.spans.append({"parent": parent, "ago_s": ago_s, **attributes})
        return OneSpan(self.spans[-1])

    def close(self) -> None:
        """Nothing is left."""


class OneSpan:
    """Its attributes are kept by the recorder."""

    trace = TRACE

    def __init__(self, kept: dict[str, Any]) -> None:
        self._kept = kept

    def note(self, attributes: Attributes) -> None:
        self._kept.update(attributes)

    def end(self, *, error: str = "") -> None:
        self._kept["error"] = error


def recorded(request: HopRequest, outcomes: list[HopOutcome]) -> list[dict[str, Any]]:
    recorder = Recorder()
    record_hop(recorder, request, outcomes, took_s=0.5)
    return recorder.spans


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_a_span_says_the_store_and_the_partition_of_its_key_and_what_came_of_it(
    sizes: list[int], data: st.DataObject
) -> None:
    groups = [
        HopGroup(f"s{number}", "l", 9, NO_BOUND, [HopKey(partition, b"") for partition in range(size)], "x")
        for number, size in enumerate(sizes)
    ]
    keys = [(group.store, key.partition) for group in groups for key in group.keys]
    chosen = data.draw(st.lists(st.tuples(st.integers(0, len(keys) - 1), st.booleans())))
    traces = [HopTrace(place, TRACE._replace(is_sampled=sampled)) for place, sampled in chosen]
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=len(keys), max_size=len(keys)))
    spans = recorded(HopRequest("a", 1, 1, 1, 9, groups, traces=traces), [OUTCOMES[kind] for kind in kinds])
    places = [place for place, sampled in chosen if sampled]
    assert [span["understudy.partition"] for span in spans] == [keys[place][1] for place in places]
    assert [span["understudy.outcome"] for span in spans] == [TEXTS[kinds[place]] for place in places]
    for span, place in zip(spans, places, strict=True):
        assert span.get("understudy.store") == (None if kinds[place] == PROBLEM else keys[place][0])
        assert (span["parent"], span["ago_s"], span["error"]) == (TRACE, 0.5, "")


def test_a_hop_has_no_more_spans_than_fit_into_a_turn_of_the_loop() -> None:
    keys = [HopKey(0, b"")] * (MAX_SPANS + 1)
    traces = [HopTrace(place, TRACE) for place in range(len(keys))]
    request = HopRequest("a", 1, 1, 1, 9, [HopGroup("s", "l", 1, NO_BOUND, keys, "x")], traces=traces)
    assert len(recorded(request, OUTCOMES[:1] * len(keys))) == MAX_SPANS
