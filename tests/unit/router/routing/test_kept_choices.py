"""A router keeps the choices it made; a kept one is the one that would be made now."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.local_bus import LocalBus
from tests.support.router.tables import assigned, beat, expire, route, task

from understudy_router.cluster.candidates import candidates_of
from understudy_router.router import Router
from understudy_router.routing.choose import MAX_CHOICE_AGE_MS, choose, key_hash
from understudy_router.settings import RouterSettings
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.messages import Farewell
from understudy_shared.reads.bounds import NO_BOUND

NODES = ("a", "b", "c", "d")


class _StandingClock:
    """A clock that stands: ages do not grow, so that whatever differs was not noticed."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_us(self) -> int:
        return 0


def router_of(clock: _StandingClock) -> Router:
    settings = RouterSettings(redis="redis://nowhere", application_id="flights")
    router = Router(settings, LocalBus(), host=HostInfo("here", 1), clock=clock)
    router.tables.bus_back(0)
    router.tables.assigned(assigned({"0_0": task("a", "b"), "0_1": task("c", "d")}, partitions=2), 0)
    return router


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["heard"] * 10 + ["restarted", "left", "assigned", "expired", "answered", "failed", "lost", "back"]
        ),
        st.integers(0, 3),
        st.integers(0, 9),
    ),
    max_size=25,
)


@given(EVENTS)
def test_a_kept_choice_is_the_one_that_would_be_made_now(events: list[tuple[str, int, int]]) -> None:
    clock = _StandingClock()
    router = router_of(clock)
    tables, words = router.tables, route(partitions=2)
    for number, (kind, index, version) in enumerate(events, 1):
        node_id, other = NODES[index], NODES[(index + 1) % 4]
        if kind in {"heard", "restarted"}:
            incarnation = "i1" if kind == "heard" else f"i{number}"
            said = beat(
                node_id, sequence=number, incarnation=incarnation, partitions=2, version=version, end_version=version
            )
            tables.heard(said, age_ms=0, now_ms=0)
        elif kind == "left":
            tables.left(Farewell(application_id="flights", node_id=node_id, incarnation="i1"), 0)
        elif kind == "assigned":
            tables.assigned(
                assigned({"0_0": task(node_id, other), "0_1": task(other)}, order=(1, number + 1), partitions=2), 0
            )
        elif kind == "expired":
            clock.now_ms += 4000  # all that was kept is too old by then
            expire(tables, clock.now_ms)
            tables.reset_heartbeat_ages(clock.now_ms)
        elif kind == "answered":
            tables.hop_answered(node_id, clock.now_ms, took_ms=1, term=1, epoch=1, end_version=version)
        elif kind == "failed":
            tables.hop_failed(node_id, clock.now_ms, "refused")
        elif kind == "lost":
            tables.bus_lost(clock.now_ms, "gone")
        else:
            tables.bus_back(clock.now_ms)
        for partition in range(2):
            kept = router.forwarder.context.choices.choose(words, partition, NO_BOUND)
            candidates = candidates_of(tables, 0, partition, clock.now_ms)
            assert kept == choose(candidates, NO_BOUND, key_hash=key_hash(words, partition), load={})


def test_a_heartbeat_of_another_node_leaves_a_choice_as_it_is() -> None:
    clock = _StandingClock()
    router = router_of(clock)
    for node_id in NODES:
        router.tables.heard(beat(node_id, partitions=2), age_ms=0, now_ms=0)
    words = route(partitions=2)
    kept = router.forwarder.context.choices.choose(words, 0, NO_BOUND)
    router.tables.heard(beat("c", sequence=2, partitions=2), age_ms=0, now_ms=0)
    assert router.forwarder.context.choices.choose(words, 0, NO_BOUND) is kept
    router.tables.heard(beat("b", sequence=2, partitions=2), age_ms=0, now_ms=0)
    assert router.forwarder.context.choices.choose(words, 0, NO_BOUND) is not kept
    kept = router.forwarder.context.choices.choose(words, 0, NO_BOUND)
    clock.now_ms = MAX_CHOICE_AGE_MS + 1
    assert router.forwarder.context.choices.choose(words, 0, NO_BOUND) is not kept, "ages grow"


def test_a_choice_is_made_anew_when_another_node_reports_a_later_end() -> None:
    clock = _StandingClock()
    router = router_of(clock)
    for node_id in NODES:
        router.tables.heard(beat(node_id, partitions=2), age_ms=0, now_ms=0)
    words = route(partitions=2)
    assert router.forwarder.context.choices.choose(words, 0, NO_BOUND).order[0].offset_lag == 0
    router.tables.heard(beat("c", sequence=2, partitions=2, version=9, end_version=9), age_ms=0, now_ms=0)
    assert router.forwarder.context.choices.choose(words, 0, NO_BOUND).order[0].offset_lag == 2
