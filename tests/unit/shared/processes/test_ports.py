"""Which ports the processes of a service get, and which are refused before any process starts."""

from __future__ import annotations

import pytest

from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.processes.ports import ports_from
from understudy_shared.server.service import bound_socket

HOST = "127.0.0.1"


def test_they_follow_one_another_from_the_port_that_is_wanted_or_from_any() -> None:
    first = ports_from(HOST, 0, 3)
    assert list(first) == [first[0], first[0] + 1, first[0] + 2]
    assert ports_from(HOST, first[0], 3) == first


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_port_that_any_service_listens_at_is_refused(is_shared: bool) -> None:
    ports = ports_from(HOST, 0, 3)
    with bound_socket(HOST, ports[1], is_shared=is_shared) as taken:
        taken.listen()
        with pytest.raises(UnderstudyError, match=rf"the port is in use \({HOST}:{ports[1]}\)"):
            ports_from(HOST, ports[0], 3)


def test_ports_beyond_the_last_are_refused() -> None:
    with pytest.raises(SettingsError, match="65536"):
        ports_from(HOST, 65_534, 3)
