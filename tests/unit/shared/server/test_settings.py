"""Settings that every service over HTTP has are refused at the start, before a port opens."""

from __future__ import annotations

import pytest

from understudy_shared.base.errors import SettingsError
from understudy_shared.server.settings import HttpServiceSettings


def test_no_page_of_another_origin_may_read_unless_its_origin_is_named() -> None:
    assert HttpServiceSettings().access("a", "127.0.0.1", is_node=False).cors is None
    named = HttpServiceSettings(cors_origins="https://app.example.com").access("a", "127.0.0.1", is_node=True).cors
    assert repr(named) == "Cors(https://app.example.com)"


@pytest.mark.parametrize("is_node", [False, True])
def test_a_wildcard_for_origins_ends_the_start_and_the_error_says_what_to_give(*, is_node: bool) -> None:
    with pytest.raises(SettingsError, match="name each origin") as refused:
        HttpServiceSettings(cors_origins="*").access("a", "127.0.0.1", is_node=is_node)
    assert refused.value.where == "cors_origins"
