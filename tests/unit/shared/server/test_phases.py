"""The table of phases: what may follow on what, and what becomes of a connection for which something else happens."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.unit.shared.server.test_parsed_cache import Connections, get

from understudy_shared.server import phases
from understudy_shared.server.direct import DirectExchange
from understudy_shared.server.phases import Phase, Transition

EVENTS = [each for each in vars(phases).values() if isinstance(each, Transition)]
OF_THE_GUARD = {Phase.UNREAD, Phase.IDLE_INTERNAL}


def test_every_phase_is_reached_from_the_first_one_and_left_again() -> None:
    reached = {Phase.SILENT}
    for _ in Phase:
        reached |= {event[phase] for event in EVENTS for phase in reached if phase in event}
    assert reached == set(Phase) - OF_THE_GUARD
    for phase in reached - {Phase.CLOSED}:
        assert any(event.get(phase, phase) is not phase for event in EVENTS), phase


def test_a_request_is_answered_once_and_begins_when_the_one_before_it_is_answered() -> None:
    assert not set(phases.ANSWER) & (phases.AT_REST | {Phase.HEAD, Phase.SURPLUS, Phase.LINGERING})
    assert set(phases.BEGIN) == phases.AT_REST | {Phase.CLOSED}
    assert phases.TAKE[Phase.IDLE] is phases.TAKE[Phase.SILENT] is Phase.DIRECT, "lookups take this as known"
    assert phases.ANSWER[Phase.DIRECT] is Phase.IDLE


def test_an_illegal_transition_closes_its_connection_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        connections = Connections(remembers=True)
        protocol, transport = connections.open()
        other, its_transport = connections.open()
        protocol.data_received(get(b"a"))
        with caplog.at_level(logging.ERROR):
            DirectExchange(protocol._reply).reply(200, b"text/plain", b"of nobody")
        assert transport.is_closed
        assert b"of nobody" not in transport.data
        protocol.data_received(get(b"b"))
        assert connections.app.direct == [b"/v1/stores/e/keys/a"]
        other.data_received(get(b"c"))
        assert its_transport.data.endswith(b"c")
        assert not its_transport.is_closed

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == [
        "a connection is closed by a bug: its answer is complete in phase IDLE"
    ]
