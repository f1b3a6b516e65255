"""Which connections are given up, and in which order: ordinary clients never, the least needed first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.server.connection_guard import default_limit_bytes
from understudy_shared.server.connection_limits import (
    ConnectionLimits,
    ConnectionState,
    Pressure,
    connections_allowed,
    goes_under_pressure,
    is_overdue,
    is_reserved,
    pressure,
    to_evict,
)
from understudy_shared.server.phases import Phase
from understudy_shared.server.settings import HttpServiceSettings

LIMITS = ConnectionLimits()
phases = st.sampled_from([each for each in Phase if each <= Phase.DIRECT])
states = st.builds(
    ConnectionState, phases, st.floats(0, 100), st.booleans(), st.floats(0, 100), st.integers(0, 1 << 23)
)


def test_a_service_takes_its_times_from_its_settings() -> None:
    names = ("header_timeout_ms", "body_timeout_ms", "unread_timeout_ms", "keep_alive_timeout_ms")
    given: dict[str, Any] = {name: 5_000 + at for at, name in enumerate(names)}
    limits = HttpServiceSettings(**given).connection_guard().limits
    assert {name: getattr(limits, name) for name in names} == given


@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [
        (Phase.SILENT, 60),
        (Phase.HANDSHAKE, 10),
        (Phase.HEAD, 10),
        (Phase.BODY, 30),
        (Phase.UNREAD, 30),
        (Phase.IDLE, 75),
        (Phase.LINGERING, 2),
    ],
)
def test_each_phase_has_its_time_and_not_less(phase: Phase, limit_s: float) -> None:
    assert not is_overdue(ConnectionState(phase, 100.0, began_s=100.0), LIMITS, 100.0 + limit_s)
    assert is_overdue(ConnectionState(phase, 100.0, began_s=100.0), LIMITS, 100.1 + limit_s)


@given(st.integers(0, 1 << 23), st.floats(0, 29))
def test_a_body_that_comes_at_the_least_rate_is_never_overdue(body_bytes: int, pause_s: float) -> None:
    now_s = body_bytes / 500 + 30
    assert not is_overdue(ConnectionState(Phase.BODY, now_s - pause_s, body_bytes=body_bytes), LIMITS, now_s)


@given(st.lists(states, max_size=20), st.integers(0, 20), st.floats(0, 200))
def test_nothing_busy_is_evicted_and_nothing_more_needed_than_what_stays(
    found: list[ConnectionState], count: int, now_s: float
) -> None:
    gone = to_evict(enumerate(found), count, now_s)
    assert len(gone) == len(set(gone)) <= count
    ranks = [(found[place].phase.value, found[place].since_s) for place in gone]
    assert ranks == sorted(ranks, key=lambda rank: (rank[0] or 0, rank[1]))
    assert all(found[place].phase not in (Phase.BUSY, Phase.DIRECT) for place in gone)
    if len(gone) < count:
        left = [state for place, state in enumerate(found) if place not in gone]
        assert all(
            state.phase in (Phase.BUSY, Phase.DIRECT, Phase.HANDSHAKE, Phase.HEAD, Phase.BODY, Phase.UNREAD)
            for state in left
        )


@pytest.mark.parametrize(
    ("used", "expected"), [(94, Pressure.NONE), (95, Pressure.SHED), (97, Pressure.SHED), (98, Pressure.REFUSE)]
)
def test_memory_is_shed_at_95_percent_and_refused_at_98(used: int, expected: Pressure) -> None:
    assert pressure(used, 100) is expected
    assert pressure(used, 0) is Pressure.NONE


def test_a_request_that_arrives_slowly_is_closed_when_memory_is_short_and_one_that_has_just_begun_is_not() -> None:
    """However often a part of it comes: those who send slowly would keep all that they have sent in memory."""
    assert goes_under_pressure(ConnectionState(Phase.BODY, since_s=10, began_s=5, body_bytes=1 << 20), 10)
    assert not goes_under_pressure(ConnectionState(Phase.BODY, since_s=10, began_s=9.5, body_bytes=1 << 20), 10)
    assert not goes_under_pressure(ConnectionState(Phase.BUSY, since_s=0), 10)


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 30))
def test_half_of_the_descriptors_stay_for_other_things(wanted: int, max_files: int) -> None:
    allowed, reserved = connections_allowed(wanted, max_files)
    assert 1 <= allowed <= wanted
    assert reserved >= 1
    assert allowed + reserved <= max(2, max_files // 2)


@pytest.mark.parametrize(
    ("path", "reserved"),
    [
        ("/", True),
        ("/livez", True),
        ("/metrics", True),
        ("/internal/v1/lookup", True),
        ("/v1/stores", False),
        ("/internal", False),
    ],
)
def test_probes_and_internal_paths_are_reserved(path: str, *, reserved: bool) -> None:
    assert is_reserved(path) is reserved


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 0),
        ({"proc/meminfo": "MemTotal: 1000 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 819_200),
        ({"proc/meminfo": "MemTotal: 1000 kB\n", "sys/fs/cgroup/memory.max": "65536\n"}, 65_536),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 0),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "4096"}, 4096),
        ({"proc/self/cgroup": "5:cpu,memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "8192"}, 8192),
    ],
)
def test_the_limit_is_the_least_that_the_system_says(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert default_limit_bytes(tmp_path) == expected
