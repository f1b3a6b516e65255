"""A node that cannot be had is one error, whatever the HTTP client makes of it."""

from __future__ import annotations

import httpx
import pytest

from understudy_shared.errors import UnderstudyError
from understudy_shared.node_calls import NodeCalls
from understudy_shared.words import HostInfo


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("late"),
        # As anyio says it of a connection that was reset in the moment in which it was made.
        AttributeError("'NoneType' object has no attribute 'getpeername'"),
        ConnectionResetError(104, "reset"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_however_a_call_fails_the_node_is_said_not_to_answer(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> httpx.Response:
        raise failure

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", fails)
    calls = NodeCalls("flights")
    with pytest.raises(UnderstudyError, match="does not answer"):
        await calls.heartbeat(HostInfo("127.0.0.1", 7101))
    await calls.close()
