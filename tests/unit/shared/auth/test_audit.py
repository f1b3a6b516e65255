"""The audit log: who was refused, who looked, who changed something, with its outcome, in bounded room."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock
from tests.support.services.guarded import WRONG, Keys

from understudy_shared.auth.access import Access
from understudy_shared.auth.audit import _OF_STRANGERS, Asked, Audited, AuditLog, asked_of, mark_of, note
from understudy_shared.auth.cluster_secret import ClusterIdentity, parse_cluster_secrets
from understudy_shared.auth.credentials import parse_credentials
from understudy_shared.auth.permissions import require_key
from understudy_shared.base.files import WatchedFile
from understudy_shared.base.throttles import REPEAT_MS, TokenBucket
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.questions.lookup.batches import KeyBatch
from understudy_shared.server.app import Framework, answer_with_problems, json_response, service_app
from understudy_shared.server.direct import Exchange
from understudy_shared.telemetry.metrics import RequestCounts

SECRET = b"s" * 32


class Service(LookupsFirst):
    """Lookups whose keys are refused as those of a prefix are, and an admin API."""

    def answer(self, target: bytes, exchange: Exchange) -> None:
        require_key(exchange.authorization, {"word": target.rpartition(b"/")[2].decode()})
        exchange.reply(200, b"application/json", b"{}")

    async def look_up_many(self, batch: KeyBatch) -> bytes:
        return b"%d" % sum(batch.scope.allows({"word": word}) for word in ("a", "b", "c"))

    def has_store(self, store: str) -> bool:
        return True


class World:
    def __init__(self, access: Access | None, clock: ManualClock) -> None:
        self.clock = clock
        http = service_app("test", lambda _: None)  # type: ignore[arg-type,return-value]  # no lifespan runs
        answer_with_problems(http)
        _routes(http)
        self.app = Service(Framework(http), max_in_flight=1, requests=RequestCounts(), access=access)
        if access is None:
            self.app.access.audit = AuditLog(clock=clock)

    async def ask(self, method: str, path: str, key: str | None = None, **more: Any) -> int:
        transport = httpx.ASGITransport(self.app, client=("192.0.2.7", 5000), raise_app_exceptions=False)
        headers = {"content-type": "application/json", **({} if key is None else {"authorization": f"Bearer {key}"})}
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return (await client.request(method, path, **{"headers": headers, **more})).status_code


def _routes(http: FastAPI) -> None:
    @http.get("/admin/v1/lag")
    @http.get("/admin/v1/nodes/{node_id}")
    async def read() -> Response:
        return json_response({})

    @http.post("/admin/nodes/{node_id}/drain")
    @http.post("/admin/v1/nodes/{node_id}/drain")
    async def drain(request: Request) -> Response:
        note(request.scope, drain=False)
        return json_response({}, 202)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = Keys(tmp_path / "credentials.toml")
    made.role("of-a", '{stores = ["words"], actions = ["point"], key_prefix = ["a"]}')
    for name, role in (("ann", "of-a"), ("op", "admin")):
        made.add(name, role)
    return made


@pytest.fixture
async def guarded(keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[World]:
    secret, clock = tmp_path / "secret", ManualClock()
    secret.write_bytes(SECRET)
    identity = ClusterIdentity(WatchedFile(secret, parse_cluster_secrets), "flights")
    audit = AuditLog(identity.audit_secret, clock)
    with caplog.at_level(logging.INFO):
        yield World(
            Access(credentials=WatchedFile(keys.path, parse_credentials), identity=identity, audit=audit), clock
        )


@pytest.fixture
def unguarded(caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    with caplog.at_level(logging.INFO):
        yield World(None, ManualClock())


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if str(vars(record).get("action", "")).startswith("audit-")]


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/admin/v1/nodes/n%0A1/drain", "/admin/v1/nodes/n\\u000a1/drain"),
        ("/admin/nodes/n1/drain", "/admin/nodes/n1/drain"),
    ],
    ids=["a call", "the form of the page"],
)
async def test_a_change_has_a_line_with_who_asked_what_came_of_it_and_that_it_was_taken_back(
    path: str, route: str, guarded: World, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert await guarded.ask("POST", path, keys["op"], content=b"{}") == 202
    line, _ = lines(caplog)
    assert (line["action"], line["principal"], line["peer"]) == ("audit-change", "op", "192.0.2.7")
    assert (line["method"], line["route"]) == ("POST", route)
    assert (line["outcome"], line["drain"], line["levelname"]) == ("202", False, "WARNING")


async def test_a_change_that_is_refused_or_fails_has_its_outcome(
    unguarded: World, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/admin/v1/nodes/n1/drain"
    assert await unguarded.ask("POST", path, headers={"content-type": "text/plain"}) == 415
    assert await unguarded.ask("POST", path) == 202
    assert [(line["principal"], line["outcome"]) for line in lines(caplog)] == [
        ("anonymous", "415"),
        ("anonymous", "202"),
    ]


async def test_refusals_of_two_stores_have_a_line_each(
    guarded: World, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    for store in ("words", "salaries", "words"):
        assert await guarded.ask("GET", f"/v1/stores/{store}/windows/a", keys["op"]) == 403
    assert [(line["route"], line["store"]) for line in lines(caplog)] == [
        ("/v1/stores/{store}/windows/{key}", "words"),
        ("/v1/stores/{store}/windows/{key}", "salaries"),
    ]


async def test_what_operators_read_has_one_line_in_a_minute_for_each_path(
    guarded: World, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        for path in ("/admin/v1/lag", "/admin/v1/nodes/a"):
            assert await guarded.ask("GET", path, keys["op"]) == 200
    guarded.clock.advance(REPEAT_MS)
    await guarded.ask("GET", "/admin/v1/lag", keys["op"])
    assert [(line["route"], line["principal"], line["left_out"]) for line in lines(caplog)] == [
        ("/admin/v1/lag", "op", 0),
        ("/admin/v1/nodes/a", "op", 0),
        ("/admin/v1/lag", "op", 4),
    ]


async def test_who_is_refused_has_a_line_with_a_mark_of_the_key_and_never_the_key(
    guarded: World, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/v1/stores/words/keys/secret-word"
    assert await guarded.ask("GET", path) == 401
    assert await guarded.ask("GET", path, WRONG) == 401
    assert await guarded.ask("GET", path, keys["op"]) == 403
    assert await guarded.ask("GET", path, keys["ann"]) == 403
    found = lines(caplog)
    assert {line["action"] for line in found} == {"audit-refused"}
    assert [line["principal"] for line in found] == ["anonymous", "anonymous", "op", "ann"]
    assert {(line["route"], line["store"]) for line in found} == {("/v1/stores/{store}/keys/{key}", "words")}
    (mark,) = {line["key"] for line in found}
    assert mark == mark_of(guarded.app.access.identity.audit_secret or b"", Asked("", "words", "secret-word"))
    told = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records if record.name != "httpx")
    assert "secret-word" not in told
    assert keys["ann"] not in told


async def test_a_flood_of_refusals_from_anywhere_writes_a_bounded_number_of_lines_and_says_how_many_it_left_out(
    guarded: World, caplog: pytest.LogCaptureFixture
) -> None:
    per_s, burst = _OF_STRANGERS
    audit = guarded.app.access.audit
    for number in range(5000):
        transport = httpx.ASGITransport(guarded.app, client=(f"10.0.{number // 250}.{number % 250}", 1))
        if number < 20:
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                await client.get("/admin/v1/lag")
        else:
            scope = {"method": "GET", "raw_path": b"/admin/v1/lag", "headers": [], "query_string": b"",
                     "client": (f"10.0.{number // 250}.{number % 250}", 1)}  # fmt: skip
            guarded.app.access.admitted(scope, guarded.app)
    assert len(lines(caplog)) == burst
    assert audit.dropped[Audited.REFUSED] == 5000 - burst
    guarded.clock.advance(1000 / per_s)
    await guarded.ask("GET", "/admin/v1/nodes/a")
    assert lines(caplog)[-1]["dropped"] == 5000 - burst
    assert max(len(str(line)) for line in lines(caplog)) < 4000


async def test_signing_in_and_out_has_a_line_each_and_the_browser_gives_its_session_back(
    guarded: World, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    transport = httpx.ASGITransport(guarded.app, client=("192.0.2.7", 5000))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as browser:
        assert (await browser.post("/admin/login", data={"key": WRONG})).status_code == 401
        assert (await browser.post("/admin/login", data={"key": keys["op"]})).status_code == 303
        assert "Signed in as op" in (await browser.get("/admin/login")).text
        foreign = {"origin": "https://elsewhere.example"}
        assert (await browser.post("/admin/logout", headers=foreign)).status_code == 403
        assert (await browser.get("/admin/logout")).status_code == 405
        assert (await browser.get("/admin/v1/lag")).status_code == 200
        assert (await browser.post("/admin/logout")).status_code == 303
        assert (await browser.get("/admin/v1/lag")).status_code == 401
    found = [(line["action"], line["principal"], line["outcome"]) for line in lines(caplog)]
    assert found == [
        ("audit-refused", "anonymous", "refused"),
        ("audit-session", "op", "signed-in"),
        ("audit-read", "op", "200"),
        ("audit-session", "op", "signed-out"),
        ("audit-refused", "anonymous", "refused"),
    ]
    assert keys["op"] not in caplog.text


# ---- pure parts


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/stores/words/keys/a%2Fb", Asked("/v1/stores/{store}/keys/{key}", "words", "a/b")),
        ("/v1/stores/words/metadata/a", Asked("/v1/stores/{store}/metadata/{key}", "words", "a")),
        ("/v1/stores/words/history/a", Asked("/v1/stores/{store}/history/{key}", "words", "a")),
        ("/v1/read", Asked("/v1/read")),
        ("/v1/stores/words/lookup", Asked("/v1/stores/{store}/lookup", "words", '["a"]')),
        ("/v1/stores/words", Asked("/v1/stores/{store}", "words")),
        ("/internal/v1/stores/words/a", Asked("/internal/v1/stores")),
        ("/keys/my-key", Asked("unknown")),
        ("/v1/stores/words/kyes/my-key", Asked("unknown")),
        ("/%61dmin/v1/lag", Asked("unknown")),
    ],
)
def test_a_key_is_taken_out_of_every_form_of_a_path(path: str, asked: Asked) -> None:
    assert asked_of(path.encode(), b"key=%5B%22a%22%5D" if path.endswith("lookup") else b"") == asked


@given(st.floats(0.1, 100), st.integers(1, 50), st.lists(st.floats(-1, 5), max_size=60))
def test_a_bucket_gives_no_more_than_its_burst_and_its_rate(per_s: float, burst: int, gaps: list[float]) -> None:
    now_s, latest_s, bucket, taken = 0.0, 0.0, TokenBucket(per_s=per_s, burst=burst, now_s=0.0), 0
    for gap in gaps:
        now_s += gap
        latest_s = max(latest_s, now_s)
        is_taken = bucket.take(now_s)
        taken += is_taken
        assert taken <= burst + per_s * latest_s + 1e-6
        assert is_taken or bucket.take(latest_s + bucket.wait_s() + 1e-6)
        if not is_taken:
            return
