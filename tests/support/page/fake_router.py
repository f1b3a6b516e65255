"""A router as the page sees it: the page's own routes, with prepared documents behind the calls that the page makes.

    python -m tests.support.page.fake_router

It is a process of its own, so that a test can stop and kill it. `POST /test/overview` replaces what it knows.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from tests.support.page.explorable import add_explorable
from tests.support.page.overviews import Overview, fleet, healthy, history
from tests.support.router.replies import EXPLAINED

from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.page.feed import Viewer
from understudy_shared.page.routes import fleet_page_routes, page_routes
from understudy_shared.server.app import Framework, answer_with_problems, json_response, service_app

HEARTBEAT_S = 1.0

ANSWER: dict[str, Any] = {
    "store": "aircraft",
    "key": {"tailnum": "N14228"},
    "found": True,
    "value": {"count": "15", "sum": "90071992547409931"},
    "result": {"flights": "15", "delay_total": "90071992547409931"},
    "partition": 0,
    "version": 418,
    "committed_at": "2026-11-22T12:04:30.000000Z",
    "watermark": None,
    "lag": {"current_offset_position": 418, "end_offset_position": 418, "offset_lag": 0, "time_lag_ms": 12},
    "served_by": {"host": "10.0.0.4", "port": 7101, "role": "active", "state": "RUNNING", "node_id": "node-1"},
    "position": "us1.position",
}


@dataclass(frozen=True, slots=True)
class Known:
    """An overview as the page's drawings take it."""

    document: Overview

    @property
    def tick(self) -> int:
        return int(self.document["tick"])

    @property
    def generated_at(self) -> str:
        return str(self.document["generated_at"])

    def documents(self) -> Generator[None, None, dict[str, Any]]:
        yield
        return self.document


class World:
    """What the fake router knows; viewers wait for the next tick."""

    def __init__(self) -> None:
        self.overview = healthy()
        self.requests: list[tuple[str, object]] = []
        self._changed = asyncio.Event()
        """Set at the next tick, which has another one."""

    async def show(self, overview: Overview) -> None:
        """Know something else from now on."""
        self.overview = {**overview, "tick": self.overview["tick"] + 1}
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def events(self, viewer: Viewer) -> AsyncIterator[bytes]:
        """The events of one viewer."""
        shown = -1
        while True:
            if self.overview["tick"] == shown:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), HEARTBEAT_S)
            now = Known(self.overview)
            if now.tick == shown:
                yield b"event: heartbeat\ndata: %b\n\n" % orjson.dumps({"generated_at": now.generated_at})
            else:
                yield await viewer.event(now)
                shown = now.tick


@asynccontextmanager
async def _lifespan(_: FastAPI) -> AsyncIterator[None]:
    yield


def fake_app() -> Framework:
    world, http = World(), service_app("A router for tests of the page", _lifespan)

    async def overview() -> Mapping[str, Any]:
        return world.overview

    async def known_history(
        store: str | None = None, partition: int | None = None, minutes: int = 60
    ) -> Mapping[str, Any]:
        return history(is_known=bool(world.overview["stores"]))

    def changes(_: Request, viewer: Viewer) -> Response:
        return StreamingResponse(
            world.events(viewer), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def applications(_: Request) -> Mapping[str, Any]:
        return fleet()

    http.include_router(page_routes(overview, known_history, changes))
    http.include_router(fleet_page_routes(applications), prefix="/fleet")

    @http.get("/admin/v1/overview")
    async def overview_document() -> Response:
        return json_response(world.overview)

    @http.get("/admin/v1/history")
    async def history_document() -> Response:
        return json_response(await known_history())

    @http.post("/test/overview")
    async def show(request: Request) -> Response:
        await world.show(orjson.loads(await request.body()))
        return json_response({"tick": world.overview["tick"]})

    @http.get("/test/requests")
    async def requests() -> Response:
        return json_response(world.requests)

    _add_calls(http, world)
    add_explorable(http)
    answer_with_problems(http)
    return Framework(http)


def _add_calls(http: FastAPI, world: World) -> None:
    """The calls that readers and operators make by the page."""

    @http.get("/admin/v1/nodes/{node_id}/safe-to-stop")
    async def safe_to_stop(node_id: str) -> Response:
        found = next((node for node in world.overview["nodes"] if node["node_id"] == node_id), None)
        if found is None:
            raise ProblemError(Problem(ProblemType.UNKNOWN_PATH, f"there is no node {node_id!r}"))
        safe = bool(found["safe_to_stop"]["safe"])
        lost = {"last_replica": [] if safe else [{"store": "routes", "partition": 1}], "bound": [],
                "active": [{"store": "aircraft", "partition": 0}]}  # fmt: skip
        return json_response({"node_id": node_id, "safe": safe, "why": found["safe_to_stop"]["why"],
                              "would_lose": lost, "checked_at": world.overview["generated_at"]})  # fmt: skip

    @http.post("/admin/v1/nodes/{node_id}/drain")
    async def drain(node_id: str, request: Request) -> Response:
        wanted = orjson.loads(await request.body())["drain"]
        world.requests.append((f"drain {node_id}", wanted))
        nodes = [
            {**node, "state": "draining" if wanted else "serving"} if node["node_id"] == node_id else node
            for node in world.overview["nodes"]
        ]
        await world.show({**world.overview, "nodes": nodes})
        return json_response({"node_id": node_id, "drain": wanted}, 202)

    @http.get("/v1/stores/{store}/lookup")
    async def lookup(store: str, request: Request) -> Response:
        world.requests.append((f"lookup {store}", dict(request.query_params)))
        key = orjson.loads(request.query_params["key"])
        if key in (["N14228"], {"tailnum": "N14228"}):
            return json_response(ANSWER)
        if key == ["<img src=x onerror=alert(1)>"]:
            raise ProblemError(Problem(ProblemType.BAD_KEY, f"{key[0]} is no key", "key", "<b>Send another</b>"))
        absent = {name: value for name, value in ANSWER.items() if name not in {"value", "result"}}
        return json_response({**absent, "found": False}, 404)

    @http.get("/v1/stores/{store}/metadata")
    async def explain(store: str, request: Request) -> Response:
        world.requests.append((f"explain {store}", dict(request.query_params)))
        return json_response({**EXPLAINED, "store": store})


@dataclass(frozen=True, slots=True)
class FakeRouter:
    """The process, for tests."""

    url: str
    process: subprocess.Popen[str]

    def show(self, overview: Overview) -> None:
        """Make it know something else."""
        body = orjson.dumps(overview)
        httpx.post(f"{self.url}/test/overview", content=body, headers={"content-type": "application/json"})

    def requests(self) -> list[list[Any]]:
        """What was asked of it by the page, in order."""
        asked: list[list[Any]] = httpx.get(f"{self.url}/test/requests").json()
        return asked


@contextmanager
def fake_router() -> Iterator[FakeRouter]:
    """A fake router in a process of its own, which knows the healthy overview."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.page.fake_router"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield FakeRouter(f"http://127.0.0.1:{int(process.stdout.readline())}", process)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def main() -> None:
    """Serve on a free port of loopback, and print it."""
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(fake_app(), log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
