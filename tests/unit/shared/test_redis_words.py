"""Redis by URL, value and pause: what is shown hides passwords, what is not ours is told apart, nobody hurries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.bus import redis_scripts as scripts
from understudy_shared.bus.redis_bus import MAX_PAUSE_MS, MIN_PAUSE_MS, RedisBus, pause_ms
from understudy_shared.bus.redis_connection import masked
from understudy_shared.bus.redis_sync import SyncPublisher
from understudy_shared.errors import SettingsError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://me:secret@host/0", "redis://me:***@host/0"),
        ("rediss://:s%40cret@[::1]:6380", "rediss://:***@[::1]:6380"),
        ("redis://me:se@cret@host", "redis://me:***@host"),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock?db=2"),
        ("unix://:secret@/run/redis.sock", "unix://:***@/run/redis.sock"),
        ("redis://host?password=secret&db=1", "redis://host?password=***&db=1"),
        ("rediss://host?ssl_password=secret&ssl_keyfile=/a/b", "rediss://host?ssl_password=***&ssl_keyfile=/a/b"),
        ("redis://[broken", "(a URL that does not parse)"),
    ],
)
def test_a_url_is_shown_without_its_passwords(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize(
    "url",
    ["", "host:6379", "http://host", "redis://host:port", "redis://[broken", "unix://", "redis://host?mood=sunny"],
)
def test_a_url_that_names_no_redis_is_refused_before_anything_is_connected(url: str) -> None:
    with pytest.raises(SettingsError, match="not the URL of a Redis") as caught:
        RedisBus(url)
    assert "redis://host:port/db" in caught.value.fix
    with pytest.raises(SettingsError, match="not the URL of a Redis"):
        SyncPublisher(url, "flights")


@pytest.mark.parametrize("url", ["redis://me:x@host:1/2", "rediss://host/0?ssl_cert_reqs=none", "unix:///a%20b.sock"])
def test_a_bus_is_made_without_an_event_loop(url: str) -> None:
    assert "RedisBus(" in repr(RedisBus(url))


@given(st.text(min_size=1, max_size=256), st.integers(0, 2**53), st.binary())
def test_values_say_what_they_are(owner: str, term: int, payload: bytes) -> None:
    assert scripts.opened(scripts.PUT + payload) == (b"put", b"", payload)
    found = scripts.opened(scripts.owned(owner) + payload)
    assert found is not None
    assert (found.kind, found.payload) == (b"owned", payload)
    assert scripts.holder_of(scripts.lease(owner, term)) == owner
    assert scripts.holder_of(scripts.owned(owner)) is None
    assert scripts.owned(owner) != scripts.owned(owner + " ")


@given(st.binary().filter(lambda value: not value.startswith(b"us1 ")))
def test_what_is_not_ours_is_told_apart(value: bytes) -> None:
    assert scripts.opened(value) is None
    assert scripts.holder_of(value) is None


@pytest.mark.parametrize(
    "value", [b"us1 put", b"us1\nput", b"us1 nonsense\n", b"us2 put\n", b"us1 put" + b" " * 4096 + b"\n"]
)
def test_what_only_resembles_ours_is_told_apart(value: bytes) -> None:
    assert scripts.opened(value) is None


@given(st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_from_50_ms_to_2_s_and_are_never_the_same_for_all(attempt: int, chance: float) -> None:
    assert MIN_PAUSE_MS / 2 <= pause_ms(attempt, chance) <= MAX_PAUSE_MS
    assert pause_ms(attempt, chance) <= pause_ms(attempt + 1, chance)
    assert pause_ms(attempt, 0.0) < pause_ms(attempt, 0.9)
