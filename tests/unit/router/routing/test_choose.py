"""Which candidates are asked: properties of every choice, and the order that readers are promised."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bus.local_bus import LocalBus
from tests.support.router.crowds import BOUNDS, crowds
from tests.support.router.tables import (
    APPLICATION,
    LINEAGE,
    TASK,
    assigned,
    beat,
    candidate,
    expire,
    port_of,
    route,
    tables_of,
    task,
)

from understudy_router.cluster.candidates import Candidate, candidates_of
from understudy_router.cluster.health import Health
from understudy_router.cluster.tables import Tables
from understudy_router.http.app import MetadataCall
from understudy_router.router import Router
from understudy_router.routing.choose import (
    MAX_CHOICE_AGE_MS,
    Choice,
    Reason,
    choose,
    explain_key,
    key_hash,
    reason_against,
)
from understudy_router.settings import RouterSettings
from understudy_shared.base.words import ApplicationId, HostInfo, Lineage
from understudy_shared.bus.messages import Farewell
from understudy_shared.reads.bounds import NO_BOUND, Bound
from understudy_shared.reads.tokens import Position
from understudy_shared.spark.store_keys import parse_encoding

LOADS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9))


def chosen(crowd: Sequence[Candidate], bound: Bound = NO_BOUND, *, key_hash: int = 1, **load: int) -> Choice:
    return choose(crowd, bound, key_hash=key_hash, load=load)


def is_calm(each: Candidate) -> bool:
    """Nothing but its lag decides its place."""
    return each.health is Health.OK and not each.is_draining


def names(crowd: Sequence[Candidate]) -> str:
    return "".join(each.node_id for each in crowd)


@given(crowds(), BOUNDS, st.integers(), LOADS)
def test_every_candidate_is_named_exactly_once(
    crowd: list[Candidate], bound: Bound, key_hash: int, load: dict[str, int]
) -> None:
    choice = choose(crowd, bound, key_hash=key_hash, load=load)
    named = [*choice.order, *(each.candidate for each in (*choice.doubtful, *choice.exclusions))]
    assert sorted(names(named)) == sorted(names(crowd))


@given(crowds(), BOUNDS, st.integers(), LOADS, st.randoms())
def test_the_choice_is_the_same_however_the_candidates_are_listed(
    crowd: list[Candidate], bound: Bound, key_hash: int, load: dict[str, int], shuffler: random.Random
) -> None:
    before = choose(crowd, bound, key_hash=key_hash, load=load)
    shuffler.shuffle(crowd)
    assert choose(crowd, bound, key_hash=key_hash, load=load) == before


@given(crowds(), BOUNDS)
def test_no_candidate_is_asked_that_is_dead_while_others_live_or_has_another_history_or_layout(
    crowd: list[Candidate], bound: Bound
) -> None:
    for each in chosen(crowd, bound).asked:
        assert each.is_live or not any(other.is_live for other in crowd)
        assert each.has_lineage
        assert each.has_layout
        assert each.role == "active" or not bound.require_active


@given(crowds(), BOUNDS)
def test_the_candidates_that_are_asked_first_keep_the_bound_by_all_that_is_known(
    crowd: list[Candidate], bound: Bound
) -> None:
    for each in chosen(crowd, bound).order:
        for lag, limit in ((each.offset_lag, bound.max_lag), (each.time_lag_ms, bound.max_staleness_ms)):
            assert lag is None or limit is None or lag <= limit
        if bound.min_position is not None:
            assert each.version is not None
            assert each.version >= bound.min_position.version


@given(crowds(), BOUNDS)
def test_unknown_lag_is_never_taken_for_0(crowd: list[Candidate], bound: Bound) -> None:
    order = chosen(crowd, bound).order
    calm = [each for each in order if is_calm(each)]
    lags_known = [each.offset_lag is not None for each in calm]
    assert lags_known == sorted(lags_known, reverse=True)
    if not bound.serves_unknown_lag:
        assert all(each.offset_lag is not None for each in order)


@given(crowds())
def test_without_a_bound_nobody_that_lives_and_is_open_is_left_out(crowd: list[Candidate]) -> None:
    open_ones = [
        each for each in crowd if each.is_live and each.has_lineage and each.has_layout and each.version is not None
    ]
    well, ill = ([each for each in open_ones if (each.health is Health.QUARANTINED) is kind] for kind in (False, True))
    assert set(names(well)) <= set(names(chosen(crowd).order))
    assert set(names(ill)) <= {each.candidate.node_id for each in chosen(crowd).doubtful}


@given(crowds(), BOUNDS)
def test_health_puts_nobody_out(crowd: list[Candidate], bound: Bound) -> None:
    """So the candidates that are left are asked, however bad they are: no panic rule is needed."""
    all_well = [dataclasses.replace(each, health=Health.OK) for each in crowd]
    assert set(names(chosen(crowd, bound).asked)) == set(names(chosen(all_well, bound).asked))


@given(crowds(), BOUNDS)
def test_a_node_in_quarantine_is_asked_after_all_that_are_not(crowd: list[Candidate], bound: Bound) -> None:
    ranks = [each.health is Health.QUARANTINED for each in chosen(crowd, bound).asked]
    assert ranks == sorted(ranks)
    assert all(each.health is not Health.QUARANTINED for each in chosen(crowd, bound).order)


@given(crowds(), BOUNDS)
def test_a_node_in_quarantine_is_named_as_such_unless_something_else_speaks_against_it(
    crowd: list[Candidate], bound: Bound
) -> None:
    doubtful = {each.candidate.node_id: each.reason for each in chosen(crowd, bound).doubtful}
    for each in crowd:
        otherwise = reason_against(dataclasses.replace(each, health=Health.OK), bound)
        assert (doubtful.get(each.node_id) is Reason.QUARANTINED) is (
            each.health is Health.QUARANTINED and otherwise is None
        )


@given(crowds(), BOUNDS)
def test_the_running_active_is_first_if_and_only_if_it_is_inside_the_bound(
    crowd: list[Candidate], bound: Bound
) -> None:
    calm = [each for each in crowd if is_calm(each)]
    running = [
        each for each in calm if each.role == "active" and each.state == "RUNNING" and each.offset_lag is not None
    ]
    order = chosen(calm, bound).order
    alone = chosen(running, bound).order
    assert order[:1] == alone or not alone
    assert alone or not set(running) & set(order)


@given(crowds(), BOUNDS)
def test_all_others_come_by_least_lag_the_suspect_behind_the_calm(crowd: list[Candidate], bound: Bound) -> None:
    order = chosen(crowd, bound).order
    suspects = [each.health is Health.SUSPECT for each in order]
    assert suspects == sorted(suspects)
    for suspect in (False, True):
        for draining in (False, True):
            lags = [
                each.offset_lag
                for each in order
                if (each.health is Health.SUSPECT) is suspect
                and each.is_draining is draining
                and each.offset_lag is not None
                and not (each.role == "active" and each.state == "RUNNING")
            ]
            assert lags == sorted(lags)


@given(crowds(), BOUNDS, st.integers(), LOADS)
def test_of_two_standbys_that_may_answer_the_less_lagged_is_asked_first_whatever_their_load(
    crowd: list[Candidate], bound: Bound, key_hash: int, load: dict[str, int]
) -> None:
    order = choose(crowd, bound, key_hash=key_hash, load=load).order
    for earlier, later in itertools.combinations(order, 2):
        if "active" in {earlier.role, later.role} or earlier.is_draining is not later.is_draining:
            continue
        if earlier.health is later.health and earlier.offset_lag is not None and later.offset_lag is not None:
            assert earlier.offset_lag <= later.offset_lag


def test_a_tie_is_broken_by_the_key_alike_each_time_and_spread_over_replicas() -> None:
    crowd = [candidate("a"), candidate("b"), candidate("c")]
    first = [names(chosen(crowd, key_hash=number).order)[0] for number in range(200)]
    assert first == [names(chosen(crowd, key_hash=number).order)[0] for number in range(200)]
    assert set(first) == set("abc")


@pytest.mark.parametrize(
    ("bound", "fields", "reason"),
    [
        pytest.param(Bound(max_lag=3), {"offset_lag": 4}, Reason.LAG_EXCEEDED, id="too far behind"),
        pytest.param(Bound(max_lag=3), {"offset_lag": None}, Reason.LAG_UNKNOWN, id="lag unknown under a bound"),
        pytest.param(Bound(max_staleness_ms=3), {"time_lag_ms": None}, Reason.LAG_UNKNOWN, id="time unknown"),
        pytest.param(
            Bound(min_position=Position(ApplicationId("flights"), Lineage("l1"), 8, None)),
            {},
            Reason.BELOW_MIN_POSITION,
            id="below the position",
        ),
        pytest.param(NO_BOUND, {"health": Health.QUARANTINED}, Reason.QUARANTINED, id="in quarantine"),
        pytest.param(NO_BOUND, {"is_silent": True}, Reason.SILENT, id="dead by the bus alone"),
        pytest.param(NO_BOUND, {"version": None, "offset_lag": None}, Reason.NOT_OPEN, id="nothing open"),
        pytest.param(
            Bound(max_lag=3), {"is_heard": False, "version": None, "offset_lag": None}, Reason.NOT_HEARD_OF, id="silent"
        ),
    ],
)
def test_what_the_next_heartbeat_may_change_is_asked_last_and_not_left_out(
    bound: Bound, fields: dict[str, object], reason: Reason
) -> None:
    choice = chosen([candidate("a", **fields)], bound)
    assert [(names([each.candidate]), each.reason) for each in choice.doubtful] == [("a", reason)]
    assert not choice.order
    assert names(choice.asked) == "a"


@pytest.mark.parametrize(
    ("bound", "fields", "reason"),
    [
        pytest.param(NO_BOUND, {"is_live": False, "has_left": True}, Reason.DEAD, id="left"),
        pytest.param(NO_BOUND, {"is_live": False, "has_endpoint": False}, Reason.DEAD, id="no address"),
        pytest.param(NO_BOUND, {"has_lineage": False}, Reason.LINEAGE_CHANGED, id="another history"),
        pytest.param(
            Bound(min_position=Position(ApplicationId("flights"), Lineage("l0"), 3, None)),
            {"lineage": "l1"},
            Reason.LINEAGE_CHANGED,
            id="a position of another history",
        ),
        pytest.param(NO_BOUND, {"has_layout": False}, Reason.OTHER_LAYOUT, id="another layout"),
        pytest.param(Bound(require_active=True), {}, Reason.NOT_ACTIVE, id="a standby where the active is required"),
    ],
)
def test_what_a_node_cannot_put_right_is_never_asked(bound: Bound, fields: dict[str, object], reason: Reason) -> None:
    choice = chosen([candidate("a", **fields)], bound)
    assert [each.reason for each in choice.exclusions] == [reason]
    assert choice.asked == ()


def test_the_dead_are_asked_only_when_no_replica_lives_since_a_pause_of_the_router_looks_the_same() -> None:
    dead = [candidate("a", role="active", is_live=False), candidate("b", is_live=False)]
    assert {each.reason for each in chosen(dead, NO_BOUND).doubtful} == {Reason.DEAD}
    assert set(names(chosen(dead, NO_BOUND).asked)) == {"a", "b"}
    assert names(chosen(dead, Bound(require_active=True)).asked) == "a"
    left = chosen([*dead, candidate("c", is_live=False, has_left=True)], NO_BOUND)
    assert (names([each.candidate for each in left.exclusions]), len(left.doubtful)) == ("c", 2)
    for living in (candidate("c"), candidate("c", has_lineage=False), candidate("c", health=Health.QUARANTINED)):
        assert not set(names(chosen([*dead, living], NO_BOUND).asked)) & {"a", "b"}


def test_a_node_dead_by_the_bus_alone_is_asked_after_all_that_were_heard_and_before_those_in_quarantine() -> None:
    crowd = [
        candidate("a", role="active", is_silent=True),
        candidate("b", version=None, offset_lag=None),
        candidate("c", health=Health.QUARANTINED),
        candidate("d"),
    ]
    assert names(chosen(crowd, NO_BOUND).asked) == "dbac"


def test_a_draining_node_still_serves_after_those_that_stay_and_before_a_suspect_one() -> None:
    """It answers for certain as long as it is there; a suspect one may well not."""
    crowd = [
        candidate("a", role="active", is_draining=True),
        candidate("b", offset_lag=3),
        candidate("c", health=Health.SUSPECT),
    ]
    assert names(chosen(crowd).order) == "bac"


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


def explained(tables: Tables, bound: Bound = NO_BOUND, *, now_ms: float = 0) -> dict[str, Any]:
    explanation = explain_key(tables, route(), ("w",), bound, load={}, now_ms=now_ms)
    return dict(orjson.loads(orjson.dumps(explanation)))


def test_an_explanation_names_everybody_with_what_is_known_and_why() -> None:
    tables = tables_of(task("a", "b", "c"), beat("a", version=2), beat("b", version=6), beat("c", lineage="l2"))
    explanation = explained(tables, Bound(max_lag=1))
    assert explanation["key"] == {"word": "w"}
    assert (explanation["partition"], explanation["partitions"], explanation["term"], explanation["epoch"]) == (
        0,
        1,
        1,
        1,
    )
    assert (explanation["end_offset_position"], explanation["end_confirmed"], explanation["bounds"]) == (
        7,
        True,
        {"max_lag": 1},
    )
    assert [(each["node_id"], each["offset_lag"]) for each in explanation["choice"]] == [("b", 1), ("a", 5)]
    assert explanation["choice"][0]["why"] == "standby, 1 version behind"
    assert "lag-exceeded" in explanation["choice"][1]["why"]
    assert [(each["node_id"], each["reason"]) for each in explanation["exclusions"]] == [("c", "lineage-changed")]
    assert explanation["active_host"] == {"host": "127.0.0.1", "port": port_of("a")}


def test_an_explanation_says_null_for_what_is_not_known() -> None:
    explanation = explained(tables_of(task("a")))
    assert (explanation["end_offset_position"], explanation["end_confirmed"]) == (None, False)
    (silent,) = explanation["choice"]
    unknown = ("state", "version", "offset_lag", "time_lag_ms", "report_age_ms")
    assert [silent[name] for name in unknown] == [None] * 5


def test_the_metadata_of_a_store_has_every_partition_and_each_host_once() -> None:
    tables = Tables()
    tables.assigned(assigned({"0_0": task("a", "b"), "0_2": task("b", "a")}, partitions=3), 0)
    metadata = orjson.loads(b"".join(MetadataCall(tables, route(partitions=3), {}).pieces()))
    a, b = ({"host": "127.0.0.1", "port": port_of(node_id)} for node_id in "ab")
    assert metadata["partitions"] == [
        {"partition": 0, "active_host": a, "standby_hosts": [b]},
        {"partition": 1, "active_host": None, "standby_hosts": []},
        {"partition": 2, "active_host": b, "standby_hosts": [a]},
    ]
    assert metadata["hosts"] == [a, b]


def test_the_metadata_of_a_store_places_keys_as_the_router_does_and_excludes_what_it_does_not_read() -> None:
    """What a client needs that asks nodes itself."""
    beats = {
        "a": beat("a"),
        "b": beat("b", state="draining"),
        "c": beat("c", lineage="l2"),
        "d": beat("d", partitions=8),
    }
    tables = tables_of(task("a", "b", "c", "d"), *beats.values())
    asked = MetadataCall(tables, route(), {"max_lag": 5})
    metadata = orjson.loads(b"".join(asked.pieces()))
    assert parse_encoding(metadata["encoding"], 1).layout(1) == route().codec.layout(1)
    assert (metadata["lineage"], metadata["application_id"], metadata["bounds"]) == (
        LINEAGE,
        APPLICATION,
        {"max_lag": 5},
    )
    excluded = {each["port"]: each["reason"] for each in metadata["excluded_hosts"]}
    assert excluded == {port_of("b"): "draining", port_of("c"): "lineage-changed", port_of("d"): "other-layout"}
    tag = asked.etag()
    assert MetadataCall(tables, route(), {"max_lag": 5}).etag() == tag
    assert MetadataCall(tables, route(), {}).etag() != tag, "other bounds"
    tables.heard(beat("b", sequence=2), age_ms=0, now_ms=1)
    assert MetadataCall(tables, route(), {"max_lag": 5}).etag() != tag, "the node drains no more"
    tables.assigned(assigned({TASK: task("b", "a")}, order=(1, 2)), 1)
    moved = MetadataCall(tables, route(), {"max_lag": 5})
    assert orjson.loads(b"".join(moved.pieces()))["epoch"] == 2
