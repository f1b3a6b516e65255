"""Whom to ask, in which order, and why not the others: for any candidates, any bound, any load."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_router.candidates import Candidate
from understudy_router.choose import Choice, Reason, choose
from understudy_shared.bounds import NO_BOUND, Bound, UnknownLag
from understudy_shared.position import Position
from understudy_shared.words import ApplicationId, HostInfo, Lineage


def candidate(node_id: str = "a", **fields: object) -> Candidate:
    told: dict[str, object] = {
        "node_id": node_id,
        "endpoint": HostInfo(node_id, 7000),
        "role": "standby",
        "state": "RUNNING",
        "version": 10,
        "offset_lag": 0,
        "time_lag_ms": 3,
        "report_age_ms": 3,
        "is_live": True,
        "is_heard": True,
        **fields,
    }
    return Candidate(**told)  # type: ignore[arg-type]


def ids(candidates: tuple[Candidate, ...]) -> list[str]:
    return [each.node_id for each in candidates]


def chosen(candidates: list[Candidate], bound: Bound = NO_BOUND, **load: int) -> Choice:
    return choose(candidates, bound, key_hash=7, load=load)


def reasons(choice: Choice) -> dict[str, Reason]:
    return {each.candidate.node_id: each.reason for each in (*choice.doubtful, *choice.exclusions)}


maybe = st.none() | st.integers(0, 20)
some_candidate = st.builds(
    lambda role, state, version, lag, time_lag, flags: candidate(
        role=role,
        state=state,
        version=version,
        offset_lag=None if version is None else lag,
        time_lag_ms=time_lag,
        is_live=flags[0],
        is_heard=flags[1] or version is not None,
        suspect="refused" if flags[2] else "",
        is_draining=flags[3],
        has_lineage=flags[4],
        has_layout=flags[5],
    ),
    st.sampled_from(["standby", "warmup"]),
    st.sampled_from(["RUNNING", "RESTORING"]),
    maybe,
    maybe,
    maybe,
    st.tuples(*[st.booleans()] * 6),
)
some_candidates = st.lists(some_candidate, max_size=5).flatmap(
    lambda found: st.booleans().map(
        lambda has_active: [
            candidate(
                f"n{number}",
                **{name: getattr(each, name) for name in each.__slots__ if name not in {"node_id", "endpoint", "role"}},
                role="active" if has_active and number == 0 else each.role,
            )
            for number, each in enumerate(found)
        ]
    )
)
some_bound = st.builds(
    Bound,
    max_lag=maybe,
    max_staleness_ms=maybe,
    min_position=st.none()
    | st.builds(lambda version: Position(ApplicationId("flights"), Lineage("l1"), version, None), st.integers(0, 20)),
    require_active=st.booleans(),
    unknown_lag=st.none() | st.sampled_from(list(UnknownLag)),
)


@given(some_candidates, some_bound)
def test_every_candidate_is_in_exactly_one_list(candidates: list[Candidate], bound: Bound) -> None:
    choice = chosen(candidates, bound)
    everybody = [*ids(choice.order), *reasons(choice)]
    assert sorted(everybody) == sorted(each.node_id for each in candidates)


@given(some_candidates, some_bound)
def test_whoever_is_asked_first_keeps_the_bound_by_what_is_known(candidates: list[Candidate], bound: Bound) -> None:
    for each in chosen(candidates, bound).order:
        assert each.is_live
        assert each.has_lineage
        assert each.has_layout
        assert not bound.require_active or each.role == "active"
        if each.version is None:
            assert not each.is_heard
            continue
        if bound.max_lag is not None and each.offset_lag is not None:
            assert each.offset_lag <= bound.max_lag
        if bound.max_staleness_ms is not None and each.time_lag_ms is not None:
            assert each.time_lag_ms <= bound.max_staleness_ms
        if bound.min_position is not None:
            assert each.version >= bound.min_position.version


@given(some_candidates, some_bound)
def test_unknown_lag_is_never_taken_for_none(candidates: list[Candidate], bound: Bound) -> None:
    if bound.serves_unknown_lag or not bound.limits_lag:
        return
    assert all(each.offset_lag is not None for each in chosen(candidates, bound).order)


@given(some_candidates, some_bound)
def test_standbys_are_asked_by_least_lag(candidates: list[Candidate], bound: Bound) -> None:
    good = [each for each in chosen(candidates, bound).order if not each.suspect and not each.is_draining]
    standbys = [each for each in good if each.role != "active"]
    lags = [each.offset_lag if each.offset_lag is not None else 2**62 for each in standbys]
    assert lags == sorted(lags)


@given(some_candidates)
def test_without_a_bound_nobody_who_lives_and_serves_this_history_is_excluded(candidates: list[Candidate]) -> None:
    for each in chosen(candidates).exclusions:
        assert not (each.candidate.is_live and each.candidate.has_lineage and each.candidate.has_layout)


@given(some_candidates, some_bound, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_the_order_of_the_candidates(
    candidates: list[Candidate], bound: Bound, random: object
) -> None:
    shuffled = list(candidates)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert chosen(candidates, bound) == chosen(shuffled, bound)


def test_the_running_active_inside_the_bound_comes_first_even_when_a_standby_is_less_lagged() -> None:
    active = candidate("a", role="active", offset_lag=2)
    choice = chosen([candidate("s", offset_lag=0), active], Bound(max_lag=2))
    assert ids(choice.order) == ["a", "s"]


def test_a_restoring_active_takes_its_place_by_lag() -> None:
    active = candidate("a", role="active", state="RESTORING", offset_lag=12)
    assert ids(chosen([active, candidate("s", offset_lag=3)]).order) == ["s", "a"]


def test_of_equally_lagged_standbys_the_less_loaded_is_asked_first() -> None:
    standbys = [candidate("s1"), candidate("s2")]
    assert ids(chosen(standbys, s1=5, s2=1).order) == ["s2", "s1"]
    assert ids(chosen(standbys, s1=1, s2=5).order) == ["s1", "s2"]


def test_a_tie_is_broken_the_same_way_for_a_key_and_not_for_all_keys() -> None:
    standbys = [candidate(f"s{number}") for number in range(4)]
    firsts = {choose(standbys, NO_BOUND, key_hash=key, load={}).order[0].node_id for key in range(64)}
    assert firsts == {each.node_id for each in standbys}


def test_suspects_are_asked_after_everybody_else() -> None:
    active = candidate("a", role="active", suspect="refused")
    assert ids(chosen([active, candidate("s", offset_lag=9)]).order) == ["s", "a"]


def test_a_draining_node_is_asked_after_those_that_stay() -> None:
    active = candidate("a", role="active", is_draining=True)
    assert ids(chosen([active, candidate("s", offset_lag=1)]).order) == ["s", "a"]


def test_who_breaks_the_bound_by_an_old_report_is_asked_last_and_who_cannot_serve_never() -> None:
    choice = chosen(
        [candidate("late", offset_lag=9), candidate("dead", is_live=False), candidate("other", has_layout=False)],
        Bound(max_lag=2),
    )
    assert choice.order == ()
    assert [(each.candidate.node_id, each.reason) for each in choice.doubtful] == [("late", Reason.LAG_EXCEEDED)]
    assert reasons(choice)["dead"] is Reason.DEAD
    assert reasons(choice)["other"] is Reason.OTHER_LAYOUT


def test_require_active_leaves_out_everybody_else() -> None:
    choice = chosen([candidate("a", role="active", offset_lag=50), candidate("s")], Bound(require_active=True))
    assert ids(choice.order) == ["a"]
    assert reasons(choice) == {"s": Reason.NOT_ACTIVE}


def test_a_replica_of_unknown_lag_is_served_last_without_a_bound_and_doubtful_under_one() -> None:
    candidates = [candidate("u", offset_lag=None, time_lag_ms=None), candidate("s", offset_lag=7)]
    assert ids(chosen(candidates).order) == ["s", "u"]
    assert reasons(chosen(candidates, Bound(max_lag=9))) == {"u": Reason.LAG_UNKNOWN}
    assert ids(chosen(candidates, Bound(max_lag=9, unknown_lag=UnknownLag.SERVE)).order) == ["s", "u"]


def test_a_node_that_was_never_heard_of_is_asked_under_a_bound_only_after_all_others() -> None:
    unheard = candidate("new", version=None, offset_lag=None, state=None, is_heard=False)
    assert ids(chosen([unheard]).order) == ["new"]
    assert reasons(chosen([unheard, candidate("s")], Bound(max_lag=0))) == {"new": Reason.NOT_HEARD_OF}
