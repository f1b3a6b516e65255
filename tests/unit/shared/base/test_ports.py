"""Ports for servers that start in a moment."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from understudy_shared.base.ports import CHOSEN_FROM, free_port, free_ports

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_port_that_somebody_has_is_replaced_and_no_port_is_given_twice() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        chosen = free_ports([port, port, port])
    assert port not in chosen
    assert len(set(chosen)) == 3
    assert free_ports(chosen) == chosen


@pytest.mark.skipif(not EPHEMERAL.exists(), reason="no Linux")
def test_a_chosen_port_is_none_that_the_kernel_gives_an_outgoing_connection_meanwhile() -> None:
    lowest = int(EPHEMERAL.read_text().split()[0])
    assert max(free_port(), CHOSEN_FROM[-1]) < lowest
