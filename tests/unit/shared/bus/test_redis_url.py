"""What settings add to the URL of a Redis: nothing is lost, nothing is shown, nothing is given twice."""

from __future__ import annotations

import ssl
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import parse_url

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import masked
from understudy_shared.bus.redis_connection import Parse, RedisTlsTrouble, refuse_bad_files, tls_trouble
from understudy_shared.bus.settings import BusSettings, with_password_file, with_tls_files

READ: Parse = parse_url
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
    wrapped: RedisTlsTrouble | None = None
    try:
        try:
            raise expired
        except ssl.SSLError:
            raise ConnectionError("redis-py's own") from None
    except ConnectionError as error:
        wrapped = tls_trouble(error)
    assert wrapped is not None
    assert wrapped.why == "its certificate has expired"
    assert tls_trouble(ConnectionError("refused")) is None
