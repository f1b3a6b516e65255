"""A fleet hands each request to its application; none disturbs the life of the others, or keeps all threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, MutableMapping
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster.fake_cluster import until
from tests.support.spark.queries import wait_until

from understudy_shared.auth.access import Access
from understudy_shared.base.errors import SettingsError
from understudy_shared.fleet.applications_file import require_id
from understudy_shared.fleet.dispatching import APPLICATION, ChosenApplication, Fleet, Served, SharedThreads, chosen
from understudy_shared.http.edge import JSON_TYPE, Receive, Scope, Send, send_reply
from understudy_shared.http.problems import ProblemError, ProblemType
from understudy_shared.http.target import application_target, refuse_unroutable
from understudy_shared.server.direct import DirectExchange, Exchange


class Application:
    """An application that says which path of it was asked for."""

    def __init__(self, name: str, *stores: str) -> None:
        self.name, self.stores, self.ended = name, stores, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_reply(send, 200, f"{self.name} {scope['raw_path'].decode()} {scope['path']}".encode(), JSON_TYPE)

    def has_store(self, store: str) -> bool:
        return store in self.stores

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        exchange.reply(200, JSON_TYPE, f"{self.name} {target.decode()}".encode())
        return True

    def accepts_body(self, target: bytes, size_bytes: int) -> bool:
        return target == b"/internal/v1/lookup" and size_bytes < 9

    def answer_body(self, target: bytes, body: bytes, exchange: Exchange) -> None:
        exchange.reply(200, JSON_TYPE, self.name.encode() + b" " + body)

    async def end_streams(self) -> None:
        self.ended = True


def fleet_of(*applications: Application) -> Fleet[Served]:
    fleet: Fleet[Served] = Fleet(cast(Any, Application("fleet")), Access())
    for each in applications:
        fleet.add(each.name, cast(Served, SimpleNamespace(app=each, is_ready=True)))
    return fleet


A, B = Application("a", "op0", "totals"), Application("b", "op0")


async def asked(fleet: Fleet[Served], path: str, *headers: tuple[bytes, bytes], method: str = "GET") -> tuple[int, str]:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    raw = path.encode()
    scope = {"type": "http", "method": method, "raw_path": raw, "path": path, "query_string": b"", "headers": headers}
    await fleet(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


def direct(fleet: Fleet[Served], target: bytes) -> tuple[bool, list[tuple[int, bytes]]]:
    replies: list[tuple[int, bytes]] = []
    is_taken = fleet.answer_directly(
        target, DirectExchange(lambda status, _type, body, _: replies.append((status, body)))
    )
    return is_taken, replies


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/applications/a/stores/op0/scan", "a /v1/stores/op0/scan /v1/stores/op0/scan"),
        ("/v1/applications/b/read?n=1", "b /v1/read?n=1 /v1/read?n=1"),
        ("/admin/v1/applications/b/lag", "b /admin/v1/lag /admin/v1/lag"),
        ("/v1/stores/totals/scan", "a /v1/stores/totals/scan /v1/stores/totals/scan"),
        ("/admin/applications/b/", "b /admin/ /admin/"),
        ("/v1/applications", "fleet /v1/applications /v1/applications"),
        ("/metrics", "fleet /metrics /metrics"),
        ("/admin/v1/drain", "fleet /admin/v1/drain /admin/v1/drain"),
    ],
)
async def test_the_application_sees_the_path_as_if_it_were_alone(path: str, answer: str) -> None:
    assert await asked(fleet_of(A, B), path) == (200, answer)


async def test_internal_calls_go_to_the_application_of_their_header() -> None:
    fleet = fleet_of(A, B)
    header = (b"understudy-application", b"b")
    assert (await asked(fleet, "/internal/v1/scan", header))[1].startswith("b ")
    assert (await asked(fleet, "/admin/v1/drain", header))[1].startswith("b ")
    assert (await asked(fleet, "/internal/v1/scan"))[0] == 404
    assert (await asked(fleet_of(A), "/internal/v1/scan"))[1].startswith("a ")
    replies: list[bytes] = []
    fleet.answer_body(
        b"/internal/v1/lookup", b"hop", DirectExchange(lambda _status, _type, body, _: replies.append(body), b"b")
    )
    fleet.answer_body(
        b"/internal/v1/lookup",
        b"hop",
        DirectExchange(lambda status, _type, _body, _: replies.append(b"%d" % status), b"c"),
    )
    assert replies == [b"b hop", b"404"]
    assert fleet.accepts_body(b"/internal/v1/lookup", 3)
    assert not Fleet(cast(Any, A), Access()).accepts_body(b"/internal/v1/lookup", 3)


async def test_what_a_fleet_does_not_know_yet_is_not_initialised_by_each_way_in() -> None:
    why: str | None = "the list has not been read yet"
    fleet: Fleet[Served] = Fleet(cast(Any, Application("fleet")), Access(), lambda: why)
    fleet.add("a", cast(Served, SimpleNamespace(app=A, is_ready=True)))
    header = (b"understudy-application", b"b")
    ways = ("/v1/applications/b/stores/op0/keys/7", "/v1/stores/other/keys/7")

    async def statuses() -> list[int]:
        found = [(await asked(fleet, path))[0] for path in ways]
        found += [replies[0][0] for _, replies in (direct(fleet, path.encode()) for path in ways)]
        found.append((await asked(fleet, "/internal/v1/scan", header))[0])
        exchange = DirectExchange(lambda status, _type, _body, _: found.append(status), b"b")
        fleet.answer_body(b"/internal/v1/lookup", b"hop", exchange)
        return found

    assert await statuses() == [503] * 6
    assert "the list has not been read yet" in (await asked(fleet, ways[0]))[1]
    assert (await asked(fleet, "/v1/stores/totals/keys/7"))[1].startswith("a "), "what is known is answered"
    why = None
    assert await statuses() == [404, 200, 404, 200, 404, 404], "the only one answers what names none"


async def test_a_removed_application_is_unknown_and_the_others_go_on() -> None:
    fleet = fleet_of(A, B)
    assert fleet.remove("a") is not None
    assert fleet.remove("a") is None
    assert (await asked(fleet, "/v1/applications/a/stores/op0/scan"))[0] == 404
    assert (await asked(fleet, "/v1/stores/op0/scan"))[1].startswith("b ")
    await fleet.end_streams()
    assert B.ended


class Blocking(Application):
    """An application whose answers need a thread; that of `hangs` has its storage silent."""

    def __init__(self, name: str, *stores: str, until: threading.Event) -> None:
        super().__init__(name, *stores)
        self.until = until

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.to_thread(self.until.wait)
        await super().__call__(scope, receive, send)


async def test_an_application_whose_storage_hangs_leaves_threads_to_the_others() -> None:
    asyncio.get_running_loop().set_default_executor(threads := SharedThreads(4, "test"))
    answers, others = threading.Event(), threading.Event()
    others.set()
    fleet = fleet_of(Blocking("a", until=answers), Blocking("b", until=others))
    hanging = asyncio.gather(*[asked(fleet, "/v1/applications/a/stores/s/scan") for _ in range(12)])
    try:
        await until(lambda: len(threads._waiting.get("a", ())) == 10)
        assert (await asked(fleet, "/v1/applications/b/stores/s/scan"))[1].startswith("b ")
        assert not hanging.done()
    finally:
        answers.set()
    assert {status for status, _ in await hanging} == {200}


FLEET: Any = {each.name: each for each in (A, B, Application("späte"))}


def always(_: str) -> bool:
    return True


def test_a_store_that_an_application_may_have_later_is_not_called_unknown() -> None:
    with pytest.raises(ProblemError) as refused:
        chosen(b"/v1/stores/late/keys/7", FLEET, lambda each: each != "späte")
    assert refused.value.problem.type is ProblemType.NOT_INITIALISED
    assert "späte" in refused.value.problem.detail
    with pytest.raises(ProblemError) as refused:
        chosen(b"/v1/stores/late/keys/7", FLEET, always)
    assert refused.value.problem.type is ProblemType.UNKNOWN_STORE


NAMES = st.text(min_size=1, max_size=300)


@given(NAMES)
def test_an_id_is_usable_exactly_if_its_path_leads_back_to_it(name: str) -> None:
    try:
        usable = require_id(name)
    except SettingsError:
        return
    raw = f"/v1/applications/{quote(usable, safe='')}/stores/s/keys/k".encode()
    refuse_unroutable(raw)
    assert application_target(raw)[1] == b"/v1/stores/s/keys/k"
    applications: Any = {usable: A, "other": B}
    assert chosen(raw, applications, always) == ChosenApplication(usable, b"/v1/stores/s/keys/k")


COUNT = 8


@pytest.fixture
def threads() -> Iterator[SharedThreads]:
    pool = SharedThreads(COUNT, "test")
    yield pool
    pool.shutdown()


def submit(threads: SharedThreads, application: str, *call: Any) -> Any:
    def of_an_application() -> Any:
        APPLICATION.set(application)
        return threads.submit(*call)

    return copy_context().run(of_an_application)


def test_an_application_that_hangs_keeps_half_and_two_keep_two_thirds(threads: SharedThreads) -> None:
    answers = threading.Event()
    try:
        first = [submit(threads, "a", answers.wait) for _ in range(20)]
        wait_until(lambda: sum(each.running() for each in first) == 4, what="half of the threads")
        second = [submit(threads, "b", answers.wait) for _ in range(20)]
        wait_until(lambda: sum(each.running() for each in second) == 2, what="half of the rest")
        assert submit(threads, "c", lambda: 7).result() == 7
        assert threads.submit(lambda: 8).result() == 8, "a call of the process itself"
        assert {each: len(calls) for each, calls in threads._waiting.items()} == {"a": 16, "b": 18}
        assert first[-1].cancel()
    finally:
        answers.set()
    for each in [*first[:-1], *second]:
        assert each.result() is True
    assert first[-1].cancelled()
