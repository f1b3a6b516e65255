"""Redis by URL, value and pause: settings add to a URL without loss, shown URLs hide passwords, foreign values are
recognised, no retry hurries.
"""

from __future__ import annotations

import inspect
import ssl
from copy import copy
from hashlib import sha1
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import SSLConnection, parse_url
from redis.exceptions import BusyLoadingError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import masked
from understudy_shared.bus import redis_scripts as scripts
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.bus.redis_connection import (
    MAX_LEAVE_S,
    SENTINEL_PORT,
    STAYS_S,
    Parse,
    Refusals,
    bus_error,
    refuse_bad_files,
    sentinel_place,
    tls_trouble,
)
from understudy_shared.bus.redis_subscription import MAX_PAUSE_MS, MIN_PAUSE_MS, pause_ms
from understudy_shared.bus.redis_sync import SyncPublisher
from understudy_shared.bus.settings import BusSettings, with_password_file, with_tls_files

READ: Parse = parse_url


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
        ("redis://[broken", "redis://***"),
        ("redis+sentinel://me:secret@a:1,b:2/us/0", "redis+sentinel://me:***@a:1,b:2/us/0"),
        (
            "redis+sentinel://a,[::1]/us?sentinel_password=secret&sentinel_username=me",
            "redis+sentinel://a,[::1]/us?sentinel_password=***&sentinel_username=me",
        ),
    ],
)
def test_a_url_is_shown_without_its_passwords(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize("pool", [redis.ConnectionPool, redis.asyncio.ConnectionPool])
def test_a_redis_that_answers_before_it_is_asked_turns_connections_away(pool: type) -> None:
    """redis-py's own words for it tell nobody what is wrong."""
    said = "Connection not ready"
    assert f'ConnectionError("{said}")' in inspect.getsource(pool)
    error = bus_error(RedisConnectionError(said), doing="reading", url="redis://host", timeout_ms=1)
    assert "turns connections away" in str(error)
    assert "protected mode" in error.fix
    assert "maxclients" in error.fix


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:x@host:1/2",
        "rediss://host/0?ssl_cert_reqs=none",
        "unix:///a%20b.sock",
        "redis+sentinel://me:x@a:1,b:2/us/2?sentinel_password=y",
        "rediss+sentinel://a/us?ssl_cert_reqs=none&sentinel_ssl=true&sentinel_ssl_cert_reqs=none",
    ],
)
def test_a_bus_is_made_without_an_event_loop(url: str) -> None:
    assert "RedisBus(" in repr(RedisBus(url))
    SyncPublisher(url, "flights").close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", ""),
        ("host", ""),
        ("redis://host:port", ""),
        ("redis://[broken", ""),
        ("unix://", ""),
        ("redis://host?mood=sunny", ""),
        ("redis+sentinel:///us", "it names no sentinel"),
        ("redis+sentinel://me:secret@/us", "it names no sentinel"),
        ("redis+sentinel://a:1,b:2", "which service"),
        ("redis+sentinel://a:1/us/zero", "'zero' is not a database number"),
        ("redis+sentinel://a:1,b:port/us", "host cannot be separated"),
        ("redis+sentinel://a:1,:2/us", "host cannot be separated"),
        ("redis+sentinel://[broken/us", "host cannot be separated"),
        ("redis+sentinel://a/us?mood=sunny", "mood"),
        ("redis+sentinel://a/us?sentinel_mood=sunny", "mood"),
        ("redis+cluster://me:secret@a:1/0", "a Redis Cluster is not supported"),
    ],
)
def test_a_url_that_names_no_redis_is_refused_before_anything_is_connected_and_says_what_it_lacks(
    url: str, why: str
) -> None:
    for make in (lambda: RedisBus(url), lambda: SyncPublisher(url, "flights")):
        with pytest.raises(SettingsError, match="not the URL of a Redis") as caught:
            make()
        assert why in caught.value.what
        assert "redis://host:port/db" in caught.value.fix
        assert "secret" not in str(caught.value)


def test_a_url_of_sentinels_keeps_their_options_from_those_of_the_servers() -> None:
    place = sentinel_place(
        "rediss+sentinel://me:s%40@a:1,[::1],b/my%20bus/3"
        "?ssl_cert_reqs=none&sentinel_username=you&sentinel_password=x%26y&sentinel_ssl=true"
    )
    assert place is not None
    assert place.sentinels == (("a", 1), ("::1", SENTINEL_PORT), ("b", SENTINEL_PORT))
    assert place.service == "my bus"
    servers, sentinels = dict(READ(place.server_url)), dict(READ(place.sentinel_url))
    assert servers.pop("connection_class") == sentinels.pop("connection_class") == SSLConnection
    assert servers == {"username": "me", "password": "s@", "db": 3, "ssl_cert_reqs": "none"}
    assert sentinels == {"username": "you", "password": "x&y"}


@given(
    st.lists(st.tuples(st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True), st.integers(1, 65_535)), min_size=1),
    st.text(min_size=1, max_size=20),
    st.text(min_size=1, max_size=20),
    st.integers(0, 99),
)
def test_every_part_of_a_url_of_sentinels_is_read_as_it_was_meant(
    sentinels: list[tuple[str, int]], service: str, password: str, db: int
) -> None:
    hosts = ",".join(f"{host}:{port}" for host, port in sentinels)
    word = quote(password, safe="")
    place = sentinel_place(f"redis+sentinel://:{word}@{hosts}/{quote(service, safe='')}/{db}?sentinel_password={word}")
    assert place is not None
    assert (place.sentinels, place.service) == (tuple(sentinels), service)
    assert READ(place.server_url) == {"password": password, "db": db}
    assert READ(place.sentinel_url) == {"password": password}


def test_tls_to_servers_and_to_sentinels_are_chosen_apart() -> None:
    for scheme, setting, of_servers, of_sentinels in (
        ("redis", "false", False, False),
        ("rediss", "", True, False),
        ("redis", "true", False, True),
    ):
        place = sentinel_place(f"{scheme}+sentinel://a/us?sentinel_ssl={setting}")
        assert place is not None
        assert ("connection_class" in READ(place.server_url)) is of_servers
        assert ("connection_class" in READ(place.sentinel_url)) is of_sentinels


@given(st.text(min_size=1, max_size=256), st.integers(0, 2**53), st.binary())
def test_values_say_what_they_are(owner: str, term: int, payload: bytes) -> None:
    assert scripts.opened(scripts.PUT + payload) == (b"put", b"", payload)
    found = scripts.opened(scripts.owned(owner) + payload)
    assert found is not None
    assert (found.kind, found.payload) == (b"owned", payload)
    lease = scripts.opened(scripts.lease(owner, term))
    assert lease is not None
    assert scripts.holder_of(lease) == owner
    assert scripts.holder_of(found) is None
    assert scripts.owned(owner) != scripts.owned(owner + " ")


@given(st.binary().filter(lambda value: not value.startswith(b"us1 ")))
def test_what_is_not_ours_is_recognised(value: bytes) -> None:
    assert scripts.opened(value) is None


@pytest.mark.parametrize(
    "value", [b"us1 put", b"us1\nput", b"us1 nonsense\n", b"us2 put\n", b"us1 put" + b" " * 4096 + b"\n"]
)
def test_what_only_resembles_ours_is_recognised(value: bytes) -> None:
    assert scripts.opened(value) is None


@given(st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_from_50_ms_to_2_s_and_are_never_the_same_for_all(attempt: int, chance: float) -> None:
    assert MIN_PAUSE_MS / 2 <= pause_ms(attempt, chance) <= MAX_PAUSE_MS
    assert pause_ms(attempt, chance) <= pause_ms(attempt + 1, chance)
    assert pause_ms(attempt, 0.0) < pause_ms(attempt, 0.9)


IN_7_0 = "The user executing the script can't run this command or subcommand script: {sha}, on @user_script:{line}."
IN_6_2 = (
    "Error running script (call to f_{sha}): @user_script:{line}: @user_script: {line}: "
    "The user executing the script can't run this command or subcommand"
)


@pytest.mark.parametrize("said", [IN_6_2, IN_7_0])
@pytest.mark.parametrize(
    ("script", "line", "rule"),
    [
        (scripts.PUT_OWNED, "redis.call('PUBLISH', ARGV[4]", "+publish"),
        (scripts.ACQUIRE, "if redis.call('EXISTS'", "+exists"),
        (scripts.RELEASE, "return redis.call('DEL'", "+del"),
    ],
)
def test_a_script_that_may_not_run_a_command_names_it_by_its_line_where_the_server_does_not(
    said: str, script: str, line: str, rule: str
) -> None:
    number = next(number for number, text in enumerate(script.splitlines(), 1) if line in text)
    sha = sha1(script.encode()).hexdigest()
    text = said.format(sha=sha, line=number)
    error = bus_error(ResponseError(text), doing="writing us:{a}:lease", url="redis://host", timeout_ms=1)
    assert f"Give this user {rule};" in error.fix
    for unknown in (text.replace(sha, "0" * 40), said.format(sha=sha, line=9999), said.format(sha=sha, line=0)):
        error = bus_error(ResponseError(unknown), doing="writing us:{a}:lease", url="redis://host", timeout_ms=1)
        assert "Compare the user with deploy/redis/users.acl" in error.fix


def test_a_replica_is_left_at_once_and_then_after_pauses_that_grow_to_two_seconds() -> None:
    refusals, now_s, pauses = Refusals(), 0.0, []
    for _ in range(10):
        assert refusals.refused(ReadOnlyError("a replica"), now_s, 0.99)
        began_s = now_s
        while not copy(refusals).refused(ReadOnlyError("a replica"), now_s, 0.99):
            now_s += 0.01
        pauses.append(round(now_s - began_s, 1))
    assert pauses == sorted(pauses)
    assert 1 < pauses[-1] <= MAX_LEAVE_S
    assert refusals.accepted()
    assert not refusals.accepted(), "it is told once"


@pytest.mark.parametrize(
    "error", [BusyLoadingError("loads"), ResponseError("NOREPLICAS Not enough good replicas to write.")]
)
def test_a_refusal_that_may_pass_leaves_a_server_only_when_it_stays(error: Exception) -> None:
    refusals = Refusals()
    assert not refusals.refused(error, 10.0, 0.5)
    assert not refusals.refused(error, 10.0 + STAYS_S / 2, 0.5)
    assert refusals.refused(error, 10.0 + STAYS_S, 0.5)
    refusals = Refusals()
    refusals.refused(error, 10.0, 0.5)
    assert not refusals.accepted(), "nothing was left"
    assert not refusals.refused(error, 100.0, 0.5, opened=3), "it counts from anew"
    assert copy(refusals).accepted(opened=4), "a connection was opened meanwhile: it may be at another server"
    assert not refusals.accepted(opened=3)


@pytest.mark.parametrize("said", ["NOPERM no", "OOM command not allowed", "MISCONF Redis is configured", "WRONGTYPE"])
def test_a_refusal_that_another_server_would_give_too_leaves_none(said: str) -> None:
    assert not any(Refusals().refused(ResponseError(said), now_s, 0.5) for now_s in (0.0, 100.0))


def test_a_replicas_code_in_the_middle_of_a_scripts_error_is_found() -> None:
    said = "Error running script (call to f_0): @user_script:3: -READONLY You can't write against a read only replica."
    assert Refusals().refused(ResponseError(said), 0.0, 0.5)


CA, CERTIFICATE, KEY = Path("/etc/tls/ca.pem"), Path("/etc/tls/a b.pem"), Path("/etc/tls/key.pem")


def test_files_become_options_and_everything_else_stays() -> None:
    for url in ("rediss://me:x%40y@host:6380/2", "rediss://host?socket_timeout=3", "rediss:///0"):
        found = dict(READ(with_tls_files(url, ca_file=CA, cert_file=CERTIFICATE, key_file=KEY)))
        added = {name: found.pop(name) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")}
        assert added == {"ssl_ca_certs": str(CA), "ssl_certfile": str(CERTIFICATE), "ssl_keyfile": str(KEY)}
        assert found == READ(url)


def test_without_files_a_url_stays_as_it_is() -> None:
    for url in ("redis://host", "nonsense", "redis://a:b@c@d"):
        assert with_tls_files(url, ca_file=None, cert_file=None, key_file=None) == url
        assert with_password_file(url, None) == url


def test_sentinels_that_speak_tls_get_the_files_too() -> None:
    both = with_tls_files("rediss+sentinel://a:1/us?sentinel_ssl=true", ca_file=CA, cert_file=None, key_file=None)
    assert "&ssl_ca_certs=/etc/tls/ca.pem" in both
    assert "&sentinel_ssl_ca_certs=/etc/tls/ca.pem" in both
    one = with_tls_files("rediss+sentinel://a:1/us", ca_file=CA, cert_file=None, key_file=None)
    assert one == "rediss+sentinel://a:1/us?ssl_ca_certs=/etc/tls/ca.pem"


@pytest.mark.parametrize(
    ("url", "files", "says"),
    [
        ("redis://host", (CA, None, None), "the URL asks for no TLS"),
        ("unix:///run/redis.sock", (CA, None, None), "the URL asks for no TLS"),
        ("rediss://host", (None, None, KEY), "without redis_cert_file"),
        ("rediss://host?ssl_ca_certs=/a", (CA, None, None), "ssl_ca_certs is in the URL and in the settings"),
    ],
)
def test_files_that_make_no_sense_are_refused(url: str, files: tuple[Path | None, ...], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        with_tls_files(url, ca_file=files[0], cert_file=files[1], key_file=files[2])


@given(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1, max_size=64))
def test_every_password_of_a_file_is_read_as_it_stands_there_and_is_never_shown(password: str) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "password"
        file.write_bytes(password.encode() + b"\nanother line")
        for url in ("redis://me@host:1/2", "redis://host/2?db=3"):
            made = with_password_file(url, file)
            found = READ(made)
            assert (found["password"], found["host"]) == (password, "host")
            assert masked(made).count("***") == 1


def test_a_password_file_that_cannot_be_used_is_refused_without_a_word_of_it(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for content, says in ((b"", "is empty"), (b"\nsecret", "is empty"), (b"\xff\xfe", "UTF-8"), (b"s" * 9999, "long")):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=says) as caught:
            with_password_file("redis://me@host", file)
        assert "secret" not in str(caught.value)
    with pytest.raises(SettingsError, match="cannot be read"):
        with_password_file("redis://me@host", tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="in the URL and in a file") as caught:
        with_password_file("redis://me:secret@host", file)
    assert "secret" not in str(caught.value)


def test_settings_make_one_url(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("a/b@c\n")
    settings = BusSettings(redis="rediss://me@host:1/0", redis_password_file=password, redis_ca_file=CA)
    assert settings.redis_url == "rediss://me:a%2Fb%40c@host:1/0?ssl_ca_certs=/etc/tls/ca.pem"
    assert "a/b" not in repr(settings)


def test_options_of_tls_that_would_do_nothing_are_refused(tmp_path: Path) -> None:
    refuse_bad_files({"ssl_cert_reqs": "none", "host": "a"})
    key = tmp_path / "key.pem"
    key.touch()
    for wrong in ({"ssl_mood": "sunny"}, {"ssl_cert_reqs": "some"}, {"ssl_keyfile": str(key)}):
        with pytest.raises((ValueError, TypeError), match=r"ssl_|mood"):
            refuse_bad_files(wrong)


def test_the_cause_of_a_failed_handshake_is_found_behind_other_errors() -> None:
    expired = ssl.SSLCertVerificationError(1, "certificate verify failed")
    expired.verify_code = 10
    wrapped: tuple[str, str] | None = None
    try:
        try:
            raise expired
        except ssl.SSLError:
            raise ConnectionError("redis-py's own") from None
    except ConnectionError as error:
        wrapped = tls_trouble(error)
    assert wrapped is not None
    assert wrapped[0] == "its certificate has expired"
    assert tls_trouble(ConnectionError("refused")) is None
