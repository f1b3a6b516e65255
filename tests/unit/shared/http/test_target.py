"""Targets of requests, with and without a prefix, and whole numbers as text."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote, quote_plus

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import SettingsError
from understudy_shared.http.edge import parse_root_path, without_root
from understudy_shared.http.lookup_requests import longs_as_text
from understudy_shared.http.problems import ProblemError, ProblemType
from understudy_shared.http.target import MAX_TARGET_BYTES, parse_query, refuse_unroutable, split_path

OUTSIDE_OF_KEYS = [
    b"/v1%2Fstores%2Fop0",
    b"/v1/stores%2Fop0",
    b"/v1/stores/a%2Fb",
    b"/v1/stores/op0%2fmetadata",
    b"/v1/stores/op0/metadata%2Fa",
    b"/v1/stores/op0/%6Betadata/a",
    b"/admin%2Fv1%2Flag",
    b"/%61dmin/v1/lag",
    b"/admin/v1/nodes/a%2Fb/drain",
    b"/admin/v1/nodes/a/%64rain",
    b"/internal/v1%2Flookup",
    b"/metrics%00",
    "/livé".encode(),
]


@pytest.mark.parametrize("raw_path", OUTSIDE_OF_KEYS, ids=repr)
def test_what_is_escaped_outside_of_names_and_keys_is_refused(raw_path: bytes) -> None:
    with pytest.raises(ProblemError) as refused:
        refuse_unroutable(raw_path)
    assert refused.value.problem.type is ProblemType.BAD_REQUEST
    assert refused.value.fix


@pytest.mark.parametrize("broken", [b"%zz", b"%", b"%2", b"a%f", b"%%41", b"%FF", b"%-1"])
@pytest.mark.parametrize(
    ("parse", "before"),
    [
        (refuse_unroutable, b"/v1/stores/op0/metadata/"),
        (refuse_unroutable, b"/v1/stores/"),
        (refuse_unroutable, b"/admin/v1/nodes/"),
        (split_path, b"/v1/stores/op0/keys/"),
        (parse_query, b"key="),
    ],
)
def test_a_broken_escape_is_refused_and_not_taken_for_text(
    parse: Callable[[bytes], object], before: bytes, broken: bytes
) -> None:
    with pytest.raises(ProblemError) as refused:
        parse(before + broken)
    assert refused.value.problem.type is ProblemType.BAD_REQUEST


TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


@pytest.mark.parametrize(
    ("raw", "segments"),
    [
        pytest.param(b"/", [""], id="root"),
        pytest.param(b"/keys/", ["keys", ""], id="an empty last segment"),
        pytest.param(b"/keys//b", ["keys", "", "b"], id="an empty segment in the middle"),
        pytest.param(b"/keys/a+b", ["keys", "a+b"], id="a plus is a plus in a path"),
        pytest.param(b"/keys/%252F", ["keys", "%2F"], id="decoded once only"),
        pytest.param(b"/keys/..%2f%2e%2e", ["keys", "../.."], id="dots are text"),
        pytest.param(b"/keys/%C3%A9", ["keys", "é"], id="UTF-8"),
        pytest.param("/keys/é".encode(), ["keys", "é"], id="UTF-8 as it is"),
        pytest.param(b"/keys/%00", ["keys", "\x00"], id="a zero byte"),
    ],
)
def test_paths_split_into_decoded_segments(raw: bytes, segments: list[str]) -> None:
    assert split_path(raw) == segments


@given(st.lists(TEXTS, min_size=1))
def test_any_segments_survive_a_path(keys: list[str]) -> None:
    raw = "/v1/" + "/".join(quote(key, safe="") for key in keys)
    assert split_path(raw.encode()) == ["v1", *keys]


@given(st.dictionaries(TEXTS, TEXTS))
def test_any_parameters_survive_a_query(parameters: dict[str, str]) -> None:
    raw = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in parameters.items())
    assert parse_query(raw.encode()) == parameters


@pytest.mark.parametrize(
    ("parse", "raw", "where"),
    [
        pytest.param(split_path, b"/keys/%FF", "path", id="path"),
        pytest.param(split_path, b"/keys/\xff", "path", id="path, raw byte"),
        pytest.param(split_path, b"/keys/%ED%A0%80", "path", id="path, half a surrogate pair"),
        pytest.param(parse_query, b"%FF=1", "query", id="parameter name"),
        pytest.param(parse_query, b"key=%C3", "query parameter 'key'", id="parameter value, cut character"),
    ],
)
def test_what_is_not_utf_8_is_refused_with_the_place(parse: Callable[[bytes], object], raw: bytes, where: str) -> None:
    with pytest.raises(ProblemError, match="not percent-encoded UTF-8") as refusal:
        parse(raw)
    assert refusal.value.problem.type is ProblemType.BAD_REQUEST
    assert refusal.value.where == where
    assert "Percent-encode" in refusal.value.fix


@pytest.mark.parametrize(("parse", "where"), [(split_path, "path"), (parse_query, "query")])
def test_a_target_above_the_limit_is_refused_unparsed(parse: Callable[[bytes], object], where: str) -> None:
    parse(b"/" * MAX_TARGET_BYTES)
    with pytest.raises(ProblemError, match=str(MAX_TARGET_BYTES)) as refusal:
        parse(b"/" * (MAX_TARGET_BYTES + 1))
    assert refusal.value.problem.type is ProblemType.TOO_LARGE
    assert refusal.value.where == where
    assert refusal.value.fix


ROOT = b"/understudy"


@pytest.mark.parametrize(
    "text",
    ["understudy", "//a", "/a//b", "/a b", "/%61", "/a?b", "/a/..", "/./a", "/v1", "/admin/x", "/internal", "/é"],
)
def test_a_prefix_that_is_no_path_or_could_be_one_of_ours_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_root_path(text)
    assert refused.value.where == "root_path"
    assert repr(text) in refused.value.what


@pytest.mark.parametrize(
    ("target", "taken"),
    [
        (b"/understudy/v1/stores", b"/v1/stores"),
        (b"/understudy", b"/"),
        (b"/understudy?a=b", b"/?a=b"),
        (b"/understudyx/v1", b"/understudyx/v1"),
        (b"/understudy/understudy/v1", b"/understudy/v1"),
        (b"/understudy//internal/v1/lookup", b"//internal/v1/lookup"),
        (b"/understudy/internal/v1/lookup", b"/understudy/internal/v1/lookup"),
        (b"/Understudy/v1", b"/Understudy/v1"),
        (b"/understudy/v1/stores/s/keys/%2F%2Fa", b"/v1/stores/s/keys/%2F%2Fa"),
    ],
)
def test_the_prefix_is_taken_off_once_and_never_before_a_call_between_services(target: bytes, taken: bytes) -> None:
    assert without_root(target, ROOT) == taken


LARGE = 2**63 - 1


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        ({"value": {"n": LARGE}}, {"value": {"n": str(LARGE)}}),
        ({"values": [{"value": {"n": LARGE}}]}, {"values": [{"value": {"n": str(LARGE)}}]}),
        (
            {"entries": [{"key": {"day": LARGE}, "value": {"n": 1.0}}]},
            {"entries": [{"key": {"day": str(LARGE)}, "value": {"n": 1.0}}]},
        ),
        ({"timers": ["2024-03-01T00:00:00.000000Z"]}, {"timers": ["2024-03-01T00:00:00.000000Z"]}),
    ],
    ids=["value", "list", "map", "timers"],
)
def test_whole_numbers_of_what_was_found_are_texts(said: dict[str, object], texts: dict[str, object]) -> None:
    answer = {"key": {"k": LARGE}, "found": True, "version": 7}
    expected = {**answer, "key": {"k": str(LARGE)}, **texts}
    assert orjson.loads(longs_as_text(orjson.dumps({**answer, **said}))) == expected
    batch = {"results": [{**answer, **said}]}
    assert orjson.loads(longs_as_text(orjson.dumps(batch))) == {"results": [expected]}
