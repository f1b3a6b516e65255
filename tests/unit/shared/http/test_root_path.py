"""The prefix under which a proxy publishes a service: what it may be, how it is taken off, and links that fit it."""

from __future__ import annotations

import pytest

from understudy_shared.base.errors import SettingsError
from understudy_shared.http.edge import parse_root_path, without_root

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
        (b"/understudy/", b"/"),
        (b"/understudy", b"/"),
        (b"/understudy?a=b", b"/?a=b"),
        (b"/v1/stores", b"/v1/stores"),
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
