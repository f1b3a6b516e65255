"""A router of an application that nobody serves, on a bus where others are: it says which, and what to do."""

from __future__ import annotations

import logging

import pytest
from tests.support.bus.documents import heartbeat
from tests.support.bus.local_bus import LocalBus
from tests.support.cluster.fake_cluster import STORE, routed, until

from understudy_shared.bus.gossip import Gossip

NOT_KNOWN = ["no catalogue is known yet", "no assignment is known yet"]


async def test_a_router_with_a_mistyped_application_id_says_which_applications_are_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = LocalBus()
    assert await Gossip(bus, "fligths").beat(heartbeat(application_id="fligths"))
    assert await Gossip(bus, "words").beat(heartbeat(application_id="words"))
    async with routed(bus) as (router, http):
        await until(lambda: len(router.not_ready()) > len(NOT_KNOWN), what="the other applications")
        reason = "no node of application 'flights' is heard on redis://unused; heard there: 'fligths', 'words'"
        assert (await http.get("/readyz")).json()["reasons"] == [*NOT_KNOWN, reason]
        refused = (await http.get(f"{STORE}/keys/x")).json()
        assert refused["fix"] == (
            "No node of application 'flights' is heard on redis://unused; heard there: 'fligths', 'words'. "
            "Did you mean 'fligths'? Check --application-id and --redis, or start nodes; retry when /readyz says so"
        )
        assert reason not in refused["detail"], "one reply says it once"
    warned = [record for record in caplog.records if getattr(record, "action", "") == "no-nodes"]
    assert [(record.levelno, record.getMessage()) for record in warned] == [
        (logging.WARNING, refused["fix"].removesuffix("; retry when /readyz says so"))
    ]
