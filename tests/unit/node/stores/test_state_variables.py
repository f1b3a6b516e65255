"""A state variable gives the value, list or map of a key, whole and in order, with its expiry; or says what is bad."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.checkpoint.shown import pages_of, shown

from understudy_node.checkpoint.state_variables import StateVariable
from understudy_node.engine.view import StateTable, brings_families
from understudy_node.replica.task_view import TaskView
from understudy_node.stores import finder as finders
from understudy_node.stores import state_variables
from understudy_node.stores.finder import FoundMembers
from understudy_node.stores.row_forms import row_form
from understudy_node.stores.state_variables import ListVariable, MapVariable, Timers, ValueVariable, value_printer
from understudy_shared.base.errors import CorruptFileError
from understudy_shared.base.words import StoreKind
from understudy_shared.reads.bounds import EVERYTHING, Selection
from understudy_shared.spark.store_keys import WHOLE_MAP
from understudy_shared.spark.types import Field, LongType, StringType, StructType, VoidType
from understudy_shared.spark.unsafe_row import compile_row_encoder

PREFIX, NOW_MS = b"\x00", 5_000
KEY = StructType((Field("word", StringType()), Field("n", LongType())))
USER = StructType((Field("place", StringType()),))
VALUE = StructType((Field("visits", LongType()),))
WITH_TTL = StructType((Field("value", VALUE), Field("ttlExpirationMs", LongType())))
PLAIN = StateVariable("seen", StoreKind.VALUE, False, "", KEY, USER, VALUE, VALUE)
EXPIRING = replace(PLAIN, has_ttl=True, stored=WITH_TTL)
TABLE, FAMILIES = StateTable("default", "seen"), {"other": 1, "seen": 7}
FAMILY = b"\x07\x00"
ROWS = row_form(PLAIN, PREFIX)
GROUPING = st.tuples(st.none() | st.text("ab,", max_size=12), st.none() | st.integers(-2, 2))
Grouping = tuple[str | None, int | None]

encode_key, encode_value, encode_expiring = (compile_row_encoder(each) for each in (KEY, VALUE, WITH_TTL))
encode_entry = compile_row_encoder(StructType((*KEY.fields, *USER.fields)))


def wrapped(schema: StructType) -> Callable[[tuple[object, ...]], bytes]:
    """Spark puts a struct of a key into a column of its own."""
    encode = compile_row_encoder(StructType((Field("key", schema),)))
    return lambda row: PREFIX + encode((row,))


def prefixed(key: Grouping, rest: bytes) -> bytes:
    first = wrapped(KEY)(key)
    return FAMILY + struct.pack("<i", len(first)) + first + rest


def printer(variable: StateVariable) -> state_variables.PrintValue:
    return value_printer(variable, ("visits",), None, lambda: NOW_MS)


def asked(row: bytes) -> bytes:
    return PREFIX + row


def parsed(found: FoundMembers | None) -> dict[str, object] | None:
    return None if found is None else dict(json.loads(b"{" + found.members.removesuffix(b",") + b"}"))


def view(records: dict[bytes, bytes]) -> TaskView:
    return shown(dict(records), families=FAMILIES)


@given(expires_ms=st.integers(0, 2 * NOW_MS))
@example(expires_ms=NOW_MS)
def test_a_value_has_expired_from_the_very_millisecond_that_its_ttl_ends(expires_ms: int) -> None:
    finder = ValueVariable(TABLE, printer(EXPIRING), ROWS)
    records = {FAMILY + PREFIX + encode_key(("a", 1)): PREFIX + encode_expiring(((3,), expires_ms))}
    found = parsed(finder.find(view(records), asked(encode_key(("a", 1))), EVERYTHING))
    assert found is not None
    assert (found["value"], found["expired"]) == ({"visits": 3}, expires_ms <= NOW_MS)
    assert str(found["expires_at"]).startswith("1970-01-01T00:00:")


@given(numbers=st.lists(st.none() | st.integers(-9, 9), min_size=1, max_size=6), separator=st.sampled_from([b"", b","]))
def test_a_list_has_its_values_in_order(numbers: list[int | None], separator: bytes) -> None:
    rows = [PREFIX + encode_value((number,)) for number in numbers]
    kept = separator.join(struct.pack("<i", len(row)) + row for row in rows)
    finder = ListVariable(TABLE, printer(PLAIN), ROWS)
    records = {FAMILY + PREFIX + encode_key(("a", 1)): kept}
    found = parsed(finder.find(view(records), asked(encode_key(("a", 1))), EVERYTHING))
    assert found == {"found": True, "values": [{"value": {"visits": number}} for number in numbers]}
    assert finder.find(view(records), asked(encode_key(("b", 1))), EVERYTHING) is None
    records[FAMILY + PREFIX + encode_key(("a", 1))] = kept[:-1]
    with pytest.raises(CorruptFileError, match="variable seen"):
        finder.find(view(records), asked(encode_key(("a", 1))), EVERYTHING)


@given(
    maps=st.dictionaries(
        GROUPING, st.dictionaries(st.none() | st.text("ab", max_size=9), st.integers(0, 9), max_size=4)
    ),
    other=GROUPING,
)
def test_a_map_is_given_whole_or_by_one_user_key(maps: dict[Grouping, dict[str | None, int]], other: Grouping) -> None:
    finder = MapVariable(TABLE, PLAIN, ("where",), printer(PLAIN), ROWS)
    encode_user = wrapped(USER)
    records = {
        prefixed(key, encode_user((place,))): PREFIX + encode_value((number,))
        for key, entries in maps.items()
        for place, number in entries.items()
    }
    shown_now = view(records)
    for key in {other, *maps}:
        entries = maps.get(key, {})
        whole = parsed(finder.find(shown_now, asked(encode_key(key) + WHOLE_MAP), EVERYTHING))
        listed = [] if whole is None else whole["entries"]
        assert isinstance(listed, list)
        assert {each["key"]["where"]: each["value"]["visits"] for each in listed} == entries
        assert len(listed) == len(entries)
        for place in {None, "", "a", *entries}:
            one = parsed(finder.find(shown_now, asked(encode_entry((*key, place))), EVERYTHING))
            expected = {"found": True, "value": {"visits": entries[place]}} if place in entries else None
            assert one == expected
    for kept in records:
        assert finder.key_row(kept) in {encode_key(key) + WHOLE_MAP for key in maps}


@given(timers=st.dictionaries(GROUPING, st.sets(st.integers(-(10**6), 10**6), min_size=1, max_size=4), max_size=4))
def test_timers_are_given_by_time(timers: dict[Grouping, set[int]]) -> None:
    finder = Timers(TABLE, KEY, ROWS)
    encode_time = compile_row_encoder(StructType((Field("expiryTimestampMs", LongType()),)))
    nothing = PREFIX + compile_row_encoder(StructType((Field("__dummy__", VoidType()),)))((None,))
    records = {
        prefixed(key, PREFIX + encode_time((time_ms,))): nothing for key, times in timers.items() for time_ms in times
    }
    for key, times in timers.items():
        found = parsed(finder.find(view(records), asked(encode_key(key)), EVERYTHING))
        assert found is not None
        listed = found["timers"]
        assert isinstance(listed, list)
        assert listed == sorted(listed)
        assert len(listed) == len(times)
    assert finder.find(view({}), asked(encode_key(("a", 1))), EVERYTHING) is None
    for kept in records:
        assert finder.key_row(kept) in set(map(encode_key, timers))


def test_what_its_ttl_has_outlived_is_left_out_when_a_reader_says_so() -> None:
    finder = ValueVariable(TABLE, printer(EXPIRING), ROWS)
    for expires_ms, is_hidden in ((NOW_MS, True), (NOW_MS + 1, False)):
        records = {FAMILY + PREFIX + encode_key(("a", 1)): PREFIX + encode_expiring(((3,), expires_ms))}
        found = finder.find(view(records), asked(encode_key(("a", 1))), Selection(include_expired=False))
        assert found is not None
        assert found.is_hidden is is_hidden
        said = parsed(found)
        assert said is not None
        assert (said["found"], said["expired"], "value" in said) == (not is_hidden, is_hidden, not is_hidden)


def test_a_page_that_leaves_much_out_ends_and_the_pages_after_it_have_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finders, "MAX_LEFT_OUT", 2)
    rows = [PREFIX + encode_expiring(((at,), at * 1_000)) for at in range(10)]
    kept = {FAMILY + PREFIX + encode_key(("a", 1)): b"".join(struct.pack("<i", len(row)) + row for row in rows)}
    finder, key = ListVariable(TABLE, printer(EXPIRING), ROWS), asked(encode_key(("a", 1)))
    pages = list(pages_of(finder, view(kept), key, 9, member="values", include_expired=False))
    assert [[element["value"]["visits"] for element in page] for page in pages] == [[], [], [6, 7, 8, 9]]


@given(known=st.sets(st.integers(1, 400)), seen=st.lists(st.integers(1, 400), max_size=5))
def test_a_version_brings_a_family_when_a_key_begins_with_an_id_that_the_snapshot_does_not_say(
    known: set[int], seen: list[int]
) -> None:
    families = {f"family {number}": number for number in known}
    keys = [struct.pack("<h", number) + b"a key" for number in seen]
    assert brings_families(families, keys) is bool(set(seen) - known)
