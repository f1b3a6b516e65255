"""Handshakes take turns: the event loop goes on with reads between them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.support.services.certificates import Signer
from tests.support.services.wire import Wire

from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.tls_connection import TlsConnection
from understudy_shared.tls.certificates import tls_plan
from understudy_shared.tls.service_tls import ServiceTls
from understudy_shared.tls.trouble import PeerRole

PEERS = 8


def greeting(signer: Signer) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = signer.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def test_a_turn_of_the_loop_takes_one_step_of_one_handshake_however_many_are_begun(tmp_path: Path) -> None:
    signer = Signer(tmp_path)
    plan = tls_plan("echo", PeerRole.ROUTER, server=signer.issue("server"), peer=(None, None), peer_ca=None)
    assert plan is not None
    tls, guard, known = ServiceTls(plan), ConnectionGuard(), set[Any]()

    def no_inner() -> Any:
        raise AssertionError("no handshake ends")

    wires = [Wire() for _ in range(PEERS)]
    for wire in wires:
        connection = TlsConnection(no_inner, tls=tls, guard=guard, connections=known)
        connection.connection_made(wire)
        connection.data_received(greeting(signer))
    assert not any(wire.reads for wire in wires), "nothing more is taken in before the turn comes"
    wires[1].is_closed = True
    answered = [0]
    while answered[-1] < PEERS - 1:
        await asyncio.sleep(0)
        answered.append(sum(bool(wire.data) for wire in wires))
        assert answered[-1] <= answered[-2] + 1
        assert len(answered) < 4 * PEERS
    assert not wires[1].data, "its peer has left"
    assert all(wire.reads for wire in wires if not wire.is_closed)
