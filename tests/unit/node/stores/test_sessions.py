"""The sessions of a key are found whole and in order, in both ways in which Spark keeps them."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.checkpoint.shown import pages_of, shown

from understudy_node.stores import finder as finders
from understudy_node.stores import operator_state
from understudy_node.stores.finder import Expiry
from understudy_node.stores.operator_state import Sessions, session_order, session_printer
from understudy_shared.http.problems import ProblemError, ProblemType
from understudy_shared.reads.bounds import EVERYTHING, Selection
from understudy_shared.spark.types import Field, LongType, StringType, StructType, TimestampType
from understudy_shared.spark.unsafe_row import compile_row_encoder

SPAN = StructType((Field("start", TimestampType()), Field("end", TimestampType())))
KEY = StructType((Field("user", StringType()), Field("sessionStartTime", TimestampType())))
VALUE = StructType((Field("user", StringType()), Field("session_window", SPAN), Field("count", LongType())))
NAMES = ("user", "session_window", "count")
USERS = st.none() | st.text("ab\uffff", max_size=9)
encode_user = compile_row_encoder(StructType(KEY.fields[:1]))
encode_start = compile_row_encoder(StructType(KEY.fields[1:]))
encode_key, encode_value = compile_row_encoder(KEY), compile_row_encoder(VALUE)
KNOWN = Expiry()
PREFIXES = pytest.mark.parametrize("prefix", [b"", b"\x00"], ids=["hdfs", "rocksdb"])


def kept_key(user: str | None, start: int, prefix: bytes) -> bytes:
    """A key as it is kept: of RocksDB as Spark stores it."""
    if not prefix:
        return session_order(KEY, one_row=True).kept(encode_key((user, start)))
    row = prefix + encode_user((user,))
    return struct.pack("<i", len(row)) + row + prefix + encode_start((start,))


def finder(prefix: bytes, expiry: Expiry = KNOWN) -> Sessions:
    return Sessions("default", KEY, expiry, session_printer(VALUE, NAMES, None), prefix)


def found_by(known: Sessions, user: str | None, records: dict[bytes, bytes | None], prefix: bytes) -> object:
    found = known.find(shown(records), prefix + encode_user((user,)), EVERYTHING)
    return None if found is None else json.loads(b"{" + found.members.removesuffix(b",") + b"}")["sessions"]


@PREFIXES
@given(
    stored=st.dictionaries(st.tuples(USERS, st.integers(-(10**9), 10**9)), st.integers(0, 9), max_size=12), asked=USERS
)
def test_a_key_has_its_own_sessions_by_their_starts(
    prefix: bytes, stored: dict[tuple[str | None, int], int], asked: str | None
) -> None:
    records: dict[bytes, bytes | None] = {
        kept_key(user, start, prefix): prefix + encode_value((user, (start, start + 5), count))
        for (user, start), count in stored.items()
    }
    known = finder(prefix)
    for user in {asked, *(user for user, _ in stored)}:
        counts = [count for (other, _), count in sorted(stored.items(), key=lambda each: each[0][1]) if other == user]
        found = found_by(known, user, records, prefix)
        assert (found is None) is (counts == [])
        assert [each["value"]["count"] for each in found or []] == counts  # type: ignore[attr-defined]
    for user, start in stored:
        assert known.key_row(kept_key(user, start, prefix)) == encode_user((user,))


@PREFIXES
@given(
    starts=st.sets(st.integers(0, 20), min_size=1, max_size=9), watermark=st.integers(0, 25), limit=st.integers(1, 4)
)
def test_sessions_that_the_watermark_has_outlived_say_so_and_are_left_out_when_that_is_asked(
    prefix: bytes, starts: set[int], watermark: int, limit: int
) -> None:
    """Each session lasts for a second from its start; the watermark is in seconds, too."""
    second = 1_000_000
    records: dict[bytes, bytes | None] = {
        kept_key("a", start * second, prefix): prefix
        + encode_value(("a", (start * second, (start + 1) * second), start))
        for start in starts
    }
    view, key = shown(records, next_watermark_ms=watermark * 1000), prefix + encode_user(("a",))
    pages = list(pages_of(finder(prefix), view, key, limit, member="sessions"))
    assert len(pages) == -(-len(starts) // limit)
    every = [each for page in pages for each in page]
    assert [(each["value"]["count"], each["expired"]) for each in every] == [
        (start, start + 1 <= watermark) for start in sorted(starts)
    ]
    alive = [each for each in every if not each["expired"]]
    if alive:
        shortened = pages_of(finder(prefix), view, key, limit, member="sessions", include_expired=False)
        assert [each for page in shortened for each in page] == alive
    else:
        hidden = finder(prefix).find(view, key, Selection(include_expired=False))
        assert hidden is not None
        assert (hidden.is_hidden, hidden.members) == (True, b'"found":false,"expired":true,')
    lagging = finder(prefix, Expiry(may_lag=True)).find(view, key, EVERYTHING)
    assert lagging is not None
    assert b'"expired":true' not in lagging.members


@PREFIXES
def test_a_key_with_more_sessions_than_are_read_is_a_problem_and_never_cut(
    prefix: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: dict[bytes, bytes | None] = {
        kept_key("a", start, prefix): prefix + encode_value(("a", (start, start), 1)) for start in range(5)
    }
    for each in (finders, operator_state):
        monkeypatch.setattr(each, "MAX_SORTED", 5)
    assert len(found_by(finder(prefix), "a", records, prefix)) == 5  # type: ignore[arg-type]
    for each in (finders, operator_state):
        monkeypatch.setattr(each, "MAX_SORTED", 4)
    with pytest.raises(ProblemError, match="more than") as refused:
        found_by(finder(prefix), "a", records, prefix)
    assert refused.value.problem.type is ProblemType.TOO_LARGE
