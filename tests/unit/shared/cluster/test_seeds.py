"""Seeds: nodes named in a setting."""

from __future__ import annotations

import pytest

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.without_bus import parse_seeds


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" , ", []),
        ("n1:7101", [HostInfo("n1", 7101)]),
        (" n1:7101 ,10.0.0.1:1,", [HostInfo("n1", 7101), HostInfo("10.0.0.1", 1)]),
        ("[::1]:7101,[2001:db8::2]:2", [HostInfo("::1", 7101), HostInfo("2001:db8::2", 2)]),
        ("n1:7101,n1:7101", [HostInfo("n1", 7101)]),
    ],
)
def test_seeds_are_hosts_with_ports(text: str, found: list[HostInfo]) -> None:
    assert parse_seeds(text) == tuple(found)


@pytest.mark.parametrize(
    "text",
    ["n1", "n1:", ":7101", "n1:0", "n1:65536", "n1:x", "::1:7101", "[::1]", "http://n1:7101", "me@n1:1", "n1:1 n2:1"],
)
def test_what_is_no_seed_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a seed") as caught:
        parse_seeds(f"n9:7101,{text}")
    assert (caught.value.where, repr(text) in caught.value.what) == ("seed", True)
    assert "host:port" in caught.value.fix
