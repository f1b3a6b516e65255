"""A service of several processes is ready when each of them is."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from tests.support.services.canned_server import Canned, CannedServer, canned_server

from understudy.services.running import Welcome
from understudy_shared.base.words import HostInfo

READY = Canned(b'{"ready": true, "reasons": []}')


@dataclass
class Supervisor:
    """The supervisor of workers, as the client knows it."""

    host: HostInfo
    own_hosts: list[HostInfo]

    def not_ready(self) -> list[str]:
        return []


def host_of(server: CannedServer) -> HostInfo:
    return HostInfo("127.0.0.1", urlsplit(server.url).port or 0)


def test_it_serves_when_each_process_is_ready_and_waits_for_the_first_that_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waits = [Canned(b'{"ready": false, "reasons": ["it restores"]}', 503)] * 2
    with (
        caplog.at_level(logging.INFO),
        canned_server([Canned(b'{"ready": true, "reasons": [], "stores": []}')]) as shared,
        canned_server([READY]) as first,
        canned_server([*waits, READY]) as second,
    ):
        service = Supervisor(host_of(shared), [host_of(first), host_of(second)])
        Welcome(lambda *_: [], speaks=False)._run(service)
        assert [len(server.requests) for server in (first, second)] == [3, 3]
        assert shared.requests == [("GET /v1/stores", b"")]
    assert [record.getMessage() for record in caplog.records] == ["waiting: it restores", "serving"]
