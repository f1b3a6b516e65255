"""The knowledge of a router: each kind of event, and what holds in any order of events; impossible numbers, answers to
hops, forks, and failovers.
"""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st
from tests.support.router.tables import (
    END_EXPIRY_MS,
    HEARTBEAT_MS,
    TASK,
    answered,
    assigned,
    beat,
    expire,
    farewell,
    happened,
    tables_of,
    task,
)

from understudy_router.cluster.candidates import candidates_of
from understudy_router.cluster.health import Health
from understudy_router.cluster.tables import Tables, promotions
from understudy_shared.base.plausible import CEILING, FIRST_SIGHT, MAX_JUMP
from understudy_shared.bus.gossip import EXPIRY_HEARTBEATS
from understudy_shared.bus.messages import Assignment, Heartbeat
from understudy_shared.cluster.view import MAX_NODES, MIN_STRANGERS, QUIET_MS, limit_beside

EXPIRY_MS = 3 * HEARTBEAT_MS
ORDERS = st.tuples(st.integers(1, 4), st.integers(1, 4))


def lags(tables: Tables, now_ms: float) -> dict[str, int | None]:
    return {each.node_id: each.offset_lag for each in candidates_of(tables, 0, 0, now_ms)}


@given(st.permutations(range(1, 8)))
def test_heartbeats_in_any_order_end_in_what_the_last_of_them_said(sequences: list[int]) -> None:
    tables = tables_of(task("a"))
    for now_ms, sequence in enumerate(sequences):
        tables.heard(beat(sequence=sequence, version=sequence), age_ms=0, now_ms=now_ms)
    assert tables.nodes["a"].heartbeat == beat(sequence=7, version=7)


@given(st.lists(ORDERS))
def test_the_assignment_never_goes_back(orders: list[tuple[int, int]]) -> None:
    tables = Tables()
    highest = (0, 0)
    for order in orders:
        assert tables.assigned(assigned({TASK: task("a")}, order=order), 0) == (order > highest)
        highest = max(highest, order)
        assert isinstance(tables.assignment, Assignment)
        assert tables.assignment.order == highest


def test_a_silent_node_leaves_within_one_expiry_and_an_event_says_why() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b"))
    tables.heard(beat("b", sequence=2), age_ms=0, now_ms=EXPIRY_MS)
    expire(tables, EXPIRY_MS)
    assert set(tables.nodes) == {"a", "b"}
    expire(tables, EXPIRY_MS + 1)
    assert set(tables.nodes) == {"b"}
    assert "silent" in tables.dead["a"].why
    assert happened(tables)[-1] == "died"
    assert [each.node_id for each in candidates_of(tables, 0, 0, EXPIRY_MS + 1) if each.is_live] == ["b"]


def test_a_silent_node_that_has_not_been_asked_in_vain_stays_and_is_known_to_be_silent() -> None:
    tables = tables_of(task("a"), beat("a"))
    tables.did_not_answer("a", -1)
    tables.expire(EXPIRY_MS + 1)
    (only,) = candidates_of(tables, 0, 0, EXPIRY_MS + 1)
    assert (only.is_live, only.is_silent) == (True, True), "it spoke after it was asked in vain"
    tables.did_not_answer("a", EXPIRY_MS)
    tables.heard(beat("a", sequence=2), age_ms=0, now_ms=EXPIRY_MS + 2)
    tables.expire(3 * EXPIRY_MS)
    assert list(tables.nodes) == ["a"], "it has spoken since"


def test_while_the_bus_is_away_nobody_dies_of_silence_and_lag_becomes_unknown() -> None:
    tables = tables_of(task("a"), beat(version=5))
    tables.bus_lost(1, "connection refused")
    tables.expire(END_EXPIRY_MS)
    assert lags(tables, END_EXPIRY_MS) == {"a": 2}
    tables.expire(END_EXPIRY_MS + 1)
    assert lags(tables, END_EXPIRY_MS + 1) == {"a": None}
    (only,) = candidates_of(tables, 0, 0, END_EXPIRY_MS + 1)
    assert (only.is_live, only.is_silent) == (True, True), "it was not asked in vain"
    back_ms = END_EXPIRY_MS + 2
    tables.bus_back(back_ms)
    expiry_ms = tables.nodes["a"].heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS
    expire(tables, back_ms + expiry_ms)
    assert "a" in tables.nodes, "it had no bus to speak on, and now it has had no longer than it may be silent"
    expire(tables, back_ms + expiry_ms + 1)
    assert "a" not in tables.nodes
    assert happened(tables)[-3:] == ["bus-lost", "bus-back", "died"]


def test_while_the_bus_is_away_a_node_dies_that_does_not_answer_and_one_that_answers_lives() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b"))
    tables.bus_lost(1, "connection refused")
    tables.heard(beat("b", sequence=2), age_ms=0, now_ms=EXPIRY_MS)
    expire(tables, EXPIRY_MS + 1)
    assert (set(tables.nodes), set(tables.dead)) == ({"b"}, {"a"})
    tables.heard(beat("a", sequence=2), age_ms=0, now_ms=EXPIRY_MS + 2)
    assert set(tables.nodes) == {"a", "b"}, "it answers again"


def test_a_farewell_removes_the_process_that_said_it_and_no_later_one() -> None:
    tables = tables_of(task("a"), beat(incarnation="i2"))
    tables.left(farewell(incarnation="i1"), 1)
    assert "a" in tables.nodes
    tables.left(farewell(incarnation="i2"), 1)
    assert "a" not in tables.nodes
    assert happened(tables)[-1] == "left"


def test_a_key_that_was_read_before_the_farewell_does_not_bring_its_node_back() -> None:
    tables = tables_of(task("a"), beat(sequence=5))
    tables.left(farewell(), 1)
    assert not tables.heard(beat(sequence=5), age_ms=20, now_ms=20)
    assert "a" not in tables.nodes
    assert tables.heard(beat(incarnation="i2", sequence=1), age_ms=0, now_ms=30)


def test_the_end_of_another_lineage_is_no_end() -> None:
    tables = tables_of(task("a", "b"), beat("a", end_version=7), beat("b", end_version=90, lineage="l2"))
    answered(tables, "b", 0, 95)
    assert tables.end_version == 7
    answered(tables, "a", 0, 99)
    assert tables.end_version == 99
    tables.assigned(assigned({TASK: task("a", "b")}, order=(1, 2), lineage="l2"), 1)
    assert tables.end_version == 90


def test_a_history_that_was_rewound_ends_where_its_nodes_say_and_not_where_an_answer_once_did() -> None:
    tables = tables_of(task("a"), beat(version=9, end_version=9))
    answered(tables, "a", 0, 10)
    assert tables.heard(beat(sequence=2, version=3, end_version=3), age_ms=0, now_ms=END_EXPIRY_MS)
    expire(tables, END_EXPIRY_MS)
    assert tables.end_version == 10
    before = tables.version
    expire(tables, END_EXPIRY_MS + 1)
    assert tables.end_version == 3
    assert lags(tables, END_EXPIRY_MS + 1) == {"a": 0}
    assert tables.version > before, "a choice that was kept is made anew"


def test_an_end_counts_as_confirmed_while_somebody_confirmed_it_recently() -> None:
    tables = tables_of(task("a", "b"), beat("a", end_age_ms=None), beat("b", end_age_ms=4000))
    assert tables.end_confirmed(END_EXPIRY_MS - 4000)
    assert not tables.end_confirmed(END_EXPIRY_MS - 3999)


def test_lag_is_unknown_by_a_report_that_is_too_old_though_others_confirm_the_end() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b"))
    tables.bus_lost(1, "connection refused")
    tables.heard(beat("b", sequence=2), age_ms=0, now_ms=END_EXPIRY_MS)
    assert lags(tables, END_EXPIRY_MS) == {"a": 0, "b": 0}
    assert lags(tables, END_EXPIRY_MS + 1) == {"a": None, "b": 0}


def test_the_catalogue_in_use_is_the_one_that_most_nodes_serve_by() -> None:
    tables = tables_of(task("a", "b", "c"), beat("a", catalogue="old"))
    assert tables.catalogue_digest == "old"
    tables.heard(beat("b", catalogue="new", end_version=6), age_ms=0, now_ms=1)
    assert tables.catalogue_digest == "old", "of two with as many nodes, the one of the higher end"
    tables.heard(beat("b", sequence=2, catalogue="new", end_version=8), age_ms=0, now_ms=2)
    assert tables.catalogue_digest == "new"
    tables.left(farewell("b"), 3)
    assert tables.catalogue_digest == "old"
    tables.heard(beat("a", sequence=2, catalogue="new"), age_ms=0, now_ms=4)
    assert tables.catalogue_digest == "new"
    tables.heard(beat("c", catalogue="other", lineage="l2"), age_ms=0, now_ms=5)
    tables.assigned(assigned({TASK: task("c")}, order=(1, 2), lineage="l2"), 6)
    assert tables.catalogue_digest == "other"


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, str, int, int]]:
    kinds = st.sampled_from(["heard"] * 4 + ["left", "answered", "assigned", "expire"])
    lineages = st.sampled_from("ab")
    return draw(st.lists(st.tuples(kinds, lineages, st.integers(0, 3), st.integers(0, 9)), max_size=30))


@given(stories())
def test_what_is_kept_of_ends_and_catalogues_is_what_the_nodes_say(story: list[tuple[str, str, int, int]]) -> None:
    """The end and the catalogue are found anew only after a change; a table that kept nothing says the same."""
    tables = Tables(end_expiry_ms=END_EXPIRY_MS)
    tables.bus_back(0)
    for number, (kind, letter, node, end) in enumerate(story):
        now_ms = number * 400
        if kind == "heard":
            said = beat(
                str(node),
                sequence=number,
                lineage=letter,
                catalogue=f"{letter}{end % 2}",
                end_version=end,
                end_age_ms=None if end % 3 == 0 else end * 3000,
            )
            tables.heard(said, age_ms=0, now_ms=now_ms)
        elif kind == "left":
            tables.left(farewell(str(node)), now_ms)
        elif kind == "answered":
            answered(tables, str(node), now_ms, end)
        elif kind == "assigned":
            tables.assigned(assigned({TASK: task("0")}, order=(1, number), lineage=letter), now_ms)
        else:
            expire(tables, now_ms)
        kept = (tables.end_version, tables.end_confirmed(now_ms), tables.catalogue_digest)
        tables._end.forget()
        tables._catalogue = None
        assert (tables.end_version, tables.end_confirmed(now_ms), tables.catalogue_digest) == kept
        confirmed = (
            each.heartbeat.end_age_ms is not None
            and each.heartbeat.lineage == tables.lineage
            and each.heartbeat.end_age_ms + each.age_ms(now_ms) <= END_EXPIRY_MS
            for each in tables._assigned_nodes()
        )
        assert tables.end_confirmed(now_ms) == any(confirmed)


def test_the_end_of_nodes_without_tasks_counts_only_until_a_node_of_the_assignment_is_heard() -> None:
    tables = tables_of(task("a"))
    tables.heard(beat("stranger", end_version=9), age_ms=0, now_ms=0)
    assert tables.end_version == 9
    tables.heard(beat("a"), age_ms=0, now_ms=0)
    assert tables.end_version == 7
    tables.heard(beat("stranger", sequence=2, end_version=10), age_ms=0, now_ms=0)
    assert tables.end_version == 7


@given(
    st.dictionaries(
        st.sampled_from(["sent_at", "sent_ms", "wall_us", "time", "clock", "said_ms", "generated_at"]),
        st.integers(-(2**62), 2**62) | st.text() | st.none(),
    )
)
def test_no_clock_reading_of_a_sender_changes_anything(clocks: dict[str, int | str | None]) -> None:
    """A heartbeat has none; ages are counted here, from its arrival."""
    payload = orjson.dumps({**orjson.loads(beat().encode()), **clocks})
    tables = tables_of(task("a"), Heartbeat.decode(payload, application_id="flights", where="a test"), now_ms=50)
    assert (tables.nodes["a"].age_ms(60), lags(tables, 60)) == (10, {"a": 0})
    expire(tables, 50 + EXPIRY_MS)
    assert "a" in tables.nodes
    expire(tables, 51 + EXPIRY_MS)
    assert "a" not in tables.nodes


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2000), st.booleans()), max_size=30))
def test_expiry_finds_every_node_that_was_silent_for_an_expiry(
    story: list[tuple[str, int, bool]],
) -> None:
    """Each with its own heartbeat, however seldom somebody looks: as after a pause of this process."""
    tables = tables_of(task("a", "b", "c"))
    beats_ms = {"a": 100, "b": 500, "c": 3000}
    heard_ms: dict[str, int] = {}
    now_ms = 0
    for sequence, (node_id, after_ms, looks) in enumerate(story):
        now_ms += after_ms
        if looks:
            expire(tables, now_ms)
            alive = {name for name, at_ms in heard_ms.items() if now_ms - at_ms <= 3 * beats_ms[name]}
            assert set(tables.nodes) == alive
            assert {
                each.node_id for each in candidates_of(tables, 0, 0, now_ms) if each.is_live and each.is_heard
            } == alive
        else:
            said = beat(node_id, sequence=sequence, heartbeat_ms=beats_ms[node_id])
            tables.heard(said, age_ms=0, now_ms=now_ms)
            heard_ms[node_id] = now_ms


def test_an_assignment_far_above_the_known_one_is_refused_and_the_next_one_taken() -> None:
    refused: list[str] = []
    tables = Tables(refuse=lambda kind, why: refused.append(kind))
    assert tables.assigned(assigned({TASK: task("a")}, order=(5, 7)), 0)
    for order in ((CEILING, CEILING), (FIRST_SIGHT, 8), (6, FIRST_SIGHT), (5 + MAX_JUMP + 1, 8)):
        assert not tables.assigned(assigned({TASK: task("b")}, order=order), 0)
    assert refused == ["assignment"] * 4
    assert tables.assigned(assigned({TASK: task("b")}, order=(6, 8)), 0)


def test_an_absurd_end_or_order_of_a_heartbeat_is_left_out_and_the_node_is_not() -> None:
    tables = tables_of(task("a", "b"), beat("a"))
    assert tables.end_version == 7
    assert tables.heard(beat("b", end_version=FIRST_SIGHT, term=FIRST_SIGHT, epoch=3), age_ms=0, now_ms=0)
    assert tables.end_version == 7
    kept = tables.nodes["b"].heartbeat
    assert (kept.term, kept.epoch, kept.end_age_ms) == (0, 0, None)
    assert not tables.hop_answered("a", 1, took_ms=1, term=FIRST_SIGHT, epoch=1, end_version=FIRST_SIGHT)
    assert tables.end_version == 7
    assert tables.hop_answered("a", 1, took_ms=1, term=1, epoch=2, end_version=8)
    assert tables.end_version == 8


def test_a_heartbeat_in_a_living_nodes_name_silences_it_no_longer_than_two_heartbeats() -> None:
    for forged in (2**48, 2**47, 1_000_000):
        tables = tables_of(task("a"), beat(sequence=5))
        tables.heard(beat(sequence=forged, version=3), age_ms=0, now_ms=1)
        for number in (1, 2):
            tables.heard(beat(sequence=5 + number), age_ms=0, now_ms=number * HEARTBEAT_MS)
        assert tables.nodes["a"].heartbeat.sequence == 7


def test_strangers_have_bounded_room_and_known_nodes_always_theirs() -> None:
    tables = tables_of(task("a", "b"), beat("a"))
    limit = limit_beside(2)
    for number in range(limit + 100):
        tables.heard(beat(f"forged-{number}", held=[]), age_ms=0, now_ms=1)
    assert len(tables.nodes) == limit == 2 + MIN_STRANGERS
    assert not tables.heard(beat("new"), age_ms=0, now_ms=2)
    assert tables.heard(beat("b"), age_ms=0, now_ms=2)
    assert {"a", "b"} <= tables.nodes.keys()
    assert not tables.heard(beat("new"), age_ms=0, now_ms=3)
    assert tables.heard(beat("new"), age_ms=0, now_ms=QUIET_MS + 200), "a silent node makes room"
    assert len(tables.nodes) == limit + 1


def test_before_an_assignment_thousands_of_nodes_are_admitted_and_known_ones_displace_the_newest() -> None:
    tables = Tables()
    for number in range(MAX_NODES + 100):
        tables.heard(beat(f"forged-{number}", held=[]), age_ms=0, now_ms=1)
    assert len(tables.nodes) == MAX_NODES
    tables.assigned(assigned({TASK: task("a")}), 1)
    assert tables.heard(beat("a"), age_ms=0, now_ms=2)
    assert len(tables.nodes) == MAX_NODES
    assert f"forged-{MAX_NODES - 1}" not in tables.nodes, "the newest stranger made room"


def test_a_node_that_no_assignment_names_sets_no_pace_and_dies_of_silence_alone() -> None:
    tables = tables_of(task("a"), beat("a"))
    tables.heard(beat("forged", heartbeat_ms=1), age_ms=0, now_ms=0)
    assert tables.heartbeat_ms(default_ms=7) == HEARTBEAT_MS
    tables.expire(4)
    assert "forged" not in tables.nodes
    assert "a" in tables.nodes


def test_a_failed_request_is_forgiven_by_an_answer_and_not_by_a_heartbeat() -> None:
    """A node that only this router cannot reach goes on beating."""
    tables = tables_of(task("a"), beat(sequence=1))
    tables.hop_failed("a", 100, "connection refused")
    assert tables.heard(beat(sequence=2), age_ms=0, now_ms=130)
    (only,) = candidates_of(tables, 0, 0, 130)
    assert (only.health, only.health_why) == (Health.SUSPECT, "connection refused")
    answered(tables, "a", 150)
    assert candidates_of(tables, 0, 0, 150)[0].health is Health.OK
    assert happened(tables)[-2:] == ["suspect", "recovered"]


def test_silence_while_others_answer_is_reported_and_puts_a_node_last() -> None:
    tables = tables_of(task("a", "b"), beat("a"), beat("b"))
    before = tables.version
    tables.hop_silent("a", 300, 210)
    assert tables.version > before
    assert tables.events[-1].detail == "a: silent for 210 ms while others answered"
    assert candidates_of(tables, 0, 0, 300)[0].health is Health.SUSPECT


def test_an_answer_shows_when_its_node_follows_a_later_assignment() -> None:
    tables = tables_of(task("a"), beat())
    assert not answered(tables, "a", 0, 7)
    assert answered(tables, "a", 0, 7, order=(1, 2))
    assert answered(tables, "a", 0, 7, order=(2, 0))


def test_an_answer_without_news_keeps_the_choices_that_were_made() -> None:
    tables = tables_of(task("a"), beat())
    before = tables.version
    answered(tables, "a", 0, 7)
    assert tables.version == before
    for change in (
        lambda: answered(tables, "a", 0, 8),
        lambda: tables.hop_failed("a", 1, "timeout"),
        lambda: answered(tables, "a", 3, 8),
        lambda: tables.heard(beat(sequence=2), age_ms=0, now_ms=3),
        lambda: tables.assigned(assigned({TASK: task("b")}, order=(1, 2)), 4),
        lambda: tables.left(farewell(), 5),
    ):
        before = tables.version
        change()
        assert tables.version > before


FORKS = {"b": "version 3 was committed twice"}


def test_a_fork_is_refused_with_itsfirst_heartbeat_when_others_named_it_before() -> None:
    tables = tables_of(task("a"), beat("a", forks=FORKS))
    assert not tables.forks, "it is not heard yet"
    tables.heard(beat("b"), age_ms=0, now_ms=1)
    assert set(tables.forks) == {"b"}
    assert happened(tables)[-1] == "fork-found"


def test_an_assignment_decides_which_side_is_refused() -> None:
    tables = tables_of(task("c"), beat("a", sequence=5, forks=FORKS), beat("b"))
    assert set(tables.forks) == {"b"}
    tables.assigned(assigned({TASK: task("b")}, order=(1, 2)), 1)
    assert set(tables.forks) == {"a"}


def test_a_node_with_a_thousand_actives_hands_them_over_in_a_line_for_each_taker() -> None:
    keys = [f"0_{number}" for number in range(1000)]
    before = assigned({key: task("a", "b", "c") for key in keys})
    after = assigned({key: task("b" if place % 4 else "c") for place, key in enumerate(keys)}, order=(1, 2))
    assert list(promotions(before, after)) == [
        "b is active for 0_1, 0_2, 0_3 and 747 more, after a",
        "c is active for 0_0, 0_4, 0_8 and 247 more, after a",
    ]


def test_what_happened_before_a_failover_stays_in_the_list() -> None:
    tables = Tables()
    tables.bus_back(0)
    keys = [f"0_{number}" for number in range(2000)]
    tables.assigned(assigned({key: task("a", "b") for key in keys}))
    tables.bus_lost(1, "away")
    tables.assigned(assigned({key: task("b") for key in keys}, order=(1, 2)), 3)
    assert happened(tables) == ["bus-back", "bus-lost", "promoted"]
