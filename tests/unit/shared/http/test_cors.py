"""Which origins count, and what is answered to a page of one: exact origins, and nothing for anybody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import SettingsError
from understudy_shared.http.cors import MAX_ORIGINS, Cors, is_shared, origin_in, parse_origins

APP, LOCAL = b"https://app.example.com", b"http://localhost:3000"
VARY = (b"vary", b"origin")


def test_origins_are_read_as_browsers_send_them() -> None:
    text = " https://app.example.com,http://localhost:3000,, http://[::1]:8080 ,https://10.0.0.7"
    assert parse_origins(text) == {APP, LOCAL, b"http://[::1]:8080", b"https://10.0.0.7"}
    assert parse_origins("") == parse_origins(" , ") == frozenset()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("*", "every page"),
        ("https://app.example.com,*", "every page"),
        ("null", "sandboxed"),
        ("https://*.example.com", "no origin"),
        ("https://app.example.com/", "no slash"),
        ("https://app.example.com/page", "no path"),
        ("app.example.com", "a scheme"),
        ("ftp://app.example.com", "no origin"),
        ("https://App.Example.com", "lower case"),
        ("HTTPS://app.example.com", "lower case"),
        ("https://user@app.example.com", "no origin"),
        ("https://app.example.com:443", "usual port"),
        ("http://localhost:80", "usual port"),
        ("http://localhost:0", "no origin"),
        ("http://localhost:65536", "no such port"),
        ("http://localhost:3000\r\nx: y", "no origin"),
        ("https://bücher.example", "no origin"),
        ("https://", "no origin"),
    ],
)
def test_what_no_browser_sends_is_refused_at_the_start_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        parse_origins(text)
    assert refused.value.where == "cors_origins"
    assert "https://app.example.com" in refused.value.fix


def test_a_list_of_origins_has_an_end() -> None:
    most = [f"https://a{number}.example.com" for number in range(MAX_ORIGINS + 1)]
    assert len(parse_origins(",".join(most[1:]))) == MAX_ORIGINS
    with pytest.raises(SettingsError, match="above"):
        parse_origins(",".join(most))


@given(st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([APP, LOCAL]), st.just(APP + b".evil.example")))
def test_an_origin_is_allowed_exactly_if_it_is_named_and_no_credentials_ever_are(origin: bytes | None) -> None:
    headers = Cors([APP, LOCAL]).headers(origin)
    assert VARY in headers
    allowed = [value for name, value in headers if name == b"access-control-allow-origin"]
    assert allowed == ([origin] if origin in {APP, LOCAL} else [])
    assert b"access-control-allow-credentials" not in dict(headers)


@given(st.text(max_size=60))
def test_whatever_is_given_is_an_origin_of_one_line_or_refused(text: str) -> None:
    try:
        found = parse_origins(text)
    except SettingsError:
        return
    assert all(each.startswith((b"http://", b"https://")) and each.count(b"/") == 2 for each in found)
    assert not any(sign in each for each in found for sign in (b"\r", b"\n", b" ", b"*", b"@"))


def test_a_request_that_names_several_origins_has_none_that_counts() -> None:
    assert origin_in([(b"host", b"x"), (b"origin", APP)]) == APP
    assert origin_in([(b"host", b"x")]) is None
    assert origin_in([(b"origin", APP), (b"origin", LOCAL)]) == b""


def test_pages_forms_and_calls_between_services_are_for_no_other_origin() -> None:
    assert all(map(is_shared, (b"/v1/stores", b"/v1/stores/a/keys/b", b"/admin/v1/lag", b"/metrics", b"/openapi.json")))
    closed = (
        b"/",
        b"/admin/",
        b"/admin/login",
        b"/admin/logout",
        b"/admin/static/a.js",
        b"/internal/v1/lookup",
        b"/docs",
    )
    assert not any(map(is_shared, closed))
