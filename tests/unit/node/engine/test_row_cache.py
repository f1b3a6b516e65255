"""Remembered rows: they answer as the base does, for the base that they were read from, within their budget."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from understudy_node.engine.base import CachedBase, EmptyBase, RowCache
from understudy_shared.base.errors import CorruptFileError


class Counted(EmptyBase):
    """A base in a dict, which knows what it was asked for."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self.rows = rows
        self.calls: list[list[bytes]] = []

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.calls.append(list(keys))
        if b"damaged" in keys:
            raise CorruptFileError("damaged")
        return [self.rows.get(key) for key in keys]


ROWS = {b"%d" % number: b"row %d" % number for number in range(12)}
keys = st.integers(0, 15).map(lambda number: b"%d" % number)


@given(st.lists(st.lists(keys, max_size=5) | keys), st.sampled_from([0, 1_000, 40_000, 1 << 20]))
def test_a_cached_base_answers_as_the_base_does_whatever_is_asked_in_which_order(
    asked: list[list[bytes] | bytes], capacity_bytes: int
) -> None:
    rows = RowCache(capacity_bytes)
    bases = [CachedBase(Counted(content), rows) for content in (ROWS, dict.fromkeys(ROWS, b"other"), {})]
    for each in asked:
        for base, content in zip(bases, (ROWS, dict.fromkeys(ROWS, b"other"), {}), strict=True):
            if isinstance(each, bytes):
                assert base.get(each) == content.get(each)
            else:
                assert base.get_many(each) == [content.get(key) for key in each]
        assert rows.used_bytes <= capacity_bytes


def test_what_is_remembered_is_not_read_again_and_the_rest_is_read_in_one_call() -> None:
    below = Counted(ROWS)
    base = CachedBase(below, RowCache(1 << 20))
    base.get_many([b"1", b"absent"])
    base.get(b"2")
    below.calls.clear()
    assert base.get_many([b"3", b"absent", b"1", b"4", b"2"]) == [b"row 3", None, b"row 1", b"row 4", b"row 2"]
    assert below.calls == [[b"3", b"4"]]
    assert base.get_many([b"4", b"absent"]) == [b"row 4", None]
    assert below.calls == [[b"3", b"4"]]


def test_what_is_asked_for_again_and_again_stays_while_others_come_and_go() -> None:
    below = Counted({b"%06d" % number: bytes(50) for number in range(5_000)} | {b"hot": b"row"})
    base = CachedBase(below, RowCache(100_000))
    for number in range(5_000):
        base.get(b"%06d" % number)
        base.get(b"hot")
    assert below.calls.count([b"hot"]) == 1
