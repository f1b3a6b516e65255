"""What an application sends by ASGI is one well-formed response, whatever it sends and whenever its client leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.services.wire import Wire

from understudy_shared.http.edge import App, Receive, Scope, Send
from understudy_shared.server.cycle import MAX_UNREAD_BODY_BYTES, Cycle
from understudy_shared.server.incoming import Flow

LENGTH = (b"content-length", b"4")


def cycle_on(wire: Wire, *, method: str = "GET", version: str = "1.1", expects_continue: bool = False) -> Cycle:
    scope = {"type": "http", "method": method, "http_version": version, "path": "/"}
    loop = asyncio.get_running_loop()
    return Cycle(
        scope, wire, Flow(wire), loop, lambda: None, keep_alive=version == "1.1", expects_continue=expects_continue
    )


def sending(*bodies: bytes, status: int = 200, headers: Any = (), pause: bool = False) -> App:
    """An application that sends these pieces of a body, at wish with a turn of the loop before the first."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        if pause:
            await asyncio.sleep(0)
        for at, body in enumerate(bodies, 1):
            await send({"type": "http.response.body", "body": body, "more_body": at < len(bodies)})

    return app


async def sent(app: App, **more: Any) -> tuple[list[bytes], Wire, Cycle]:
    wire = Wire()
    cycle = cycle_on(wire, **more)
    await cycle.run(app)
    await asyncio.sleep(0)
    return wire.writes, wire, cycle


async def test_head_and_body_are_one_write_and_what_follows_is_written_as_it_comes() -> None:
    writes, _, _ = await sent(sending(b"body", headers=[LENGTH]))
    assert writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody"]
    writes, wire, _ = await sent(sending(b"one", b"", b"three"))
    assert writes == [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n", b"5\r\nthree\r\n0\r\n\r\n"]
    assert not wire.is_closed


async def test_a_head_whose_body_is_still_to_come_is_sent_in_the_next_turn() -> None:
    writes, _, _ = await sent(sending(b"body", headers=[LENGTH], pause=True))
    assert writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", b"body"]


async def test_a_client_of_http_1_0_gets_no_chunks_and_the_end_of_the_connection() -> None:
    writes, wire, _ = await sent(sending(b"one", b"two"), version="1.0")
    assert writes == [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\none", b"two"]
    assert wire.is_closed


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_a_response_that_may_not_have_a_body_is_its_head(method: str, status: int) -> None:
    writes, wire, cycle = await sent(sending(b"", status=status, headers=[LENGTH]), method=method)
    assert len(writes) == 1
    assert writes[0].endswith(b"content-length: 4\r\n\r\n")
    assert cycle.response_complete
    assert not wire.is_closed


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError


async def ends(scope: Scope, receive: Receive, send: Send) -> None: ...


@pytest.mark.parametrize(
    "app",
    [fails, ends, sending(b"body", headers=[(b"location", b"x\r\nset-cookie: y")])],
    ids=["fails", "ends", "splits"],
)
async def test_an_application_that_fails_before_its_response_is_a_problem_and_ends_the_connection(app: App) -> None:
    writes, wire, _ = await sent(app)
    assert len(writes) == 1
    assert writes[0].startswith(b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/problem+json")
    assert b"set-cookie" not in writes[0]
    assert wire.is_closed


async def test_an_answer_that_the_service_cannot_wait_for_is_cut_and_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wire = Wire()
    task = asyncio.ensure_future(cycle_on(wire).run(never))
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert wire.is_closed
    assert not caplog.records


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("bodies", [(b"bodies",), (b"bod",), (b"b", b"o")], ids=["long", "short", "short by pieces"])
async def test_a_body_that_differs_from_its_length_is_never_a_whole_response(bodies: tuple[bytes, ...]) -> None:
    writes, wire, cycle = await sent(sending(*bodies, headers=[LENGTH]))
    assert wire.is_closed
    assert not cycle.response_complete
    assert len(b"".join(writes).partition(b"\r\n\r\n")[2]) < 4


async def test_a_client_that_is_gone_is_told_to_the_application_and_gets_nothing() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        cycle.end_body()
        seen.append((await receive())["type"])
        cycle.leave()
        seen.append((await receive())["type"])
        await send({"type": "http.response.body", "body": b"late"})

    wire = Wire()
    cycle = cycle_on(wire)
    await cycle.run(app)
    assert seen == ["http.request", "http.disconnect"]
    assert b"late" not in b"".join(wire.writes)


async def test_a_body_is_asked_for_when_it_is_read_and_pauses_reading_while_it_is_not() -> None:
    seen: list[dict[str, Any]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(await receive())  # type: ignore[arg-type]

    wire = Wire()
    cycle = cycle_on(wire, expects_continue=True)
    task = asyncio.ensure_future(cycle.run(app))
    await asyncio.sleep(0)
    assert wire.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    cycle.feed(b"x" * (MAX_UNREAD_BODY_BYTES + 1))
    assert not wire.reads
    cycle.end_body()
    await task
    assert [(len(each["body"]), each["more_body"]) for each in seen] == [(MAX_UNREAD_BODY_BYTES + 1, False)]
