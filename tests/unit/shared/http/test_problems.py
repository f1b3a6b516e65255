"""Problems as answers, and the origins whose pages may read."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import (
    BadKeyError,
    CheckpointError,
    NoSuchStoreError,
    SettingsError,
    UnderstudyError,
    UnsupportedError,
)
from understudy_shared.http.origins import Cors, parse_origins
from understudy_shared.http.problems import problem_of, refused
from understudy_shared.reads.bounds import BadBoundError, Refusal
from understudy_shared.reads.tokens import BadPositionError, OtherLineageError


@pytest.mark.parametrize(
    ("kind", "slug"),
    [
        (BadKeyError, "bad-key"),
        (BadBoundError, "bad-bound"),
        (BadPositionError, "bad-bound"),
        (OtherLineageError, "lineage-changed"),
        (NoSuchStoreError, "unknown-store"),
        (CheckpointError, "store-error"),
        (UnsupportedError, "store-error"),
        (UnderstudyError, "internal"),
    ],
)
def test_each_error_becomes_its_problem_and_keeps_what_where_and_fix(kind: type[UnderstudyError], slug: str) -> None:
    problem = problem_of(kind("it is wrong", where="here", fix="Do this"))
    assert (problem.type.slug, problem.detail, problem.where, problem.fix) == (slug, "it is wrong", "here", "Do this")


@pytest.mark.parametrize("reason", Refusal)
def test_every_refusal_says_its_reason_its_candidates_and_what_to_do(reason: Refusal) -> None:
    candidates: list[dict[str, object]] = [{"host": "node-1", "reason": reason}]
    members = orjson.loads(refused(reason, candidates=candidates).body())
    kind, status, fix = {
        Refusal.LINEAGE_CHANGED: ("lineage-changed", 409, "Drop the position"),
        Refusal.VERSION_GONE: ("version-gone", 410, "Ask for a newer version"),
        Refusal.VERSION_OPENING: ("not-initialised", 503, "Retry after a second"),
    }.get(reason, ("no-acceptable-replica", 503, "Retry, or "))
    assert (members["type"], members["status"]) == (kind, status)
    assert reason.value in members["detail"]
    assert members["candidates"] == [{"host": "node-1", "reason": reason.value}]
    assert members["fix"].startswith(fix)


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
        ("null", "sandboxed"),
        ("https://*.example.com", "not an origin"),
        ("https://app.example.com/", "no slash"),
        ("app.example.com", "a scheme"),
        ("ftp://app.example.com", "not an origin"),
        ("https://App.Example.com", "lower case"),
        ("https://user@app.example.com", "not an origin"),
        ("https://app.example.com:443", "usual port"),
        ("http://localhost:0", "not an origin"),
        ("http://localhost:65536", "no such port"),
        ("http://localhost:3000\r\nx: y", "not an origin"),
        ("https://bücher.example", "not an origin"),
    ],
)
def test_what_no_browser_sends_is_refused_at_the_start_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        parse_origins(text)
    assert refused.value.where == "cors_origins"
    assert "https://app.example.com" in refused.value.fix


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
