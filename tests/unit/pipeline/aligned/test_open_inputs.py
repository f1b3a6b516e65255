"""Inputs that are asked before a query reads, and by which it reads then."""

from __future__ import annotations

import pytest
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.protocol import InputError
from understudy_aligned.open_inputs import OpenInputs


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer({"weather": 1})


@pytest.fixture
def inputs(server: ScriptedServer) -> OpenInputs:
    return OpenInputs([server.config])


def test_an_input_is_opened_once_however_often_it_is_asked_before_it_reads(
    server: ScriptedServer, inputs: OpenInputs
) -> None:
    assert server.opened == 0
    with inputs.lend(0) as first:
        pass
    with inputs.lend(0) as again:
        assert again is first
    assert inputs.take(0) is first
    assert (server.opened, server.open_inputs) == (1, 1)


def test_an_input_that_failed_is_closed_and_the_next_caller_gets_a_new_one(
    server: ScriptedServer, inputs: OpenInputs
) -> None:
    server.fail(InputError("away", where="here", fix="wait"))
    with pytest.raises(InputError), inputs.lend(0) as asked:
        asked.partitions(timeout_ms=1)
    assert server.open_inputs == 0
    with inputs.lend(0) as another:
        assert another is not asked
