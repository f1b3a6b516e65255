"""Seeds: nodes named in a setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.words import HostInfo
from understudy_shared.cluster.seeds import MAX_SEEDS, parse_seeds

HOSTS = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True) | st.sampled_from(["::1", "2001:db8::"])


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


def test_a_list_that_nobody_wrote_by_hand_is_refused() -> None:
    with pytest.raises(SettingsError, match=f"above {MAX_SEEDS}"):
        parse_seeds(",".join(f"n{number}:1" for number in range(MAX_SEEDS + 1)))


@given(st.lists(st.builds(HostInfo, HOSTS, st.integers(1, 65535)), max_size=8, unique=True))
def test_seeds_that_are_written_down_are_read_back(seeds: list[HostInfo]) -> None:
    written = [f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}" for each in seeds]
    assert parse_seeds(",".join(written)) == tuple(seeds)
