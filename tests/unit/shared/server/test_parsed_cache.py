"""What is kept of requests' bytes: only what was put there, never more than fits, the latest rather than the oldest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.server import parsed_cache
from understudy_shared.server.parsed_cache import ParsedCache


def entries(cache: ParsedCache[int]) -> int:
    return len(cache._young) + len(cache._old)


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=200))
def test_a_cache_answers_only_what_was_kept_and_has_room_for_so_many(steps: list[tuple[bool, int]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parsed_cache, "MAX_ENTRIES", 8)
        cache: ParsedCache[int] = ParsedCache(max_key_bytes=20)
        for keeps, number in steps:
            key = b"%d" % number
            if keeps:
                cache.keep(key, number)
                assert cache.get(key) == number
            else:
                assert cache.get(key) in {None, number}
            assert entries(cache) <= 8


@given(st.lists(st.integers(1, 60), max_size=200))
def test_a_cache_has_room_for_so_many_bytes_of_keys(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parsed_cache, "MAX_BYTES", 200)
        cache: ParsedCache[int] = ParsedCache(max_key_bytes=50)
        for number, size in enumerate(sizes):
            key = bytes([number % 7]) * size
            cache.keep(key, number)
            assert cache.get(key) == (number if size <= 50 else None)
            assert sum(map(len, [*cache._young, *cache._old])) <= 200


def test_what_is_used_again_outlives_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsed_cache, "MAX_ENTRIES", 8)
    cache: ParsedCache[int] = ParsedCache(max_key_bytes=20)
    for number in range(100):
        cache.keep(b"%d" % number, number)
        cache.keep(b"used", -1) if number == 0 else cache.get(b"used")
    assert (cache.get(b"used"), cache.get(b"1"), cache.get(b"99")) == (-1, None, 99)
