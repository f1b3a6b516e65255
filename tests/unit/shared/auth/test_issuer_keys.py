"""An issuer may exchange its keys, hang, or be away: tokens that are good go on, and it is never hammered."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.support.services.guarded import Keys
from tests.support.services.issuer import SigningKey, TokenIssuer, token_issuer

from understudy_shared.auth import access, authentication, issuer_keys
from understudy_shared.auth.access import Access, authorization_of
from understudy_shared.auth.credentials import parse_credentials
from understudy_shared.auth.issuer_keys import COOL_DOWN_S, MAX_AGE_S, REFRESH_S, FetchError, _key_set_at
from understudy_shared.auth.presented import presented_in
from understudy_shared.base.files import WatchedFile
from understudy_shared.http.edge import Receive, Scope, Send, send_reply

PATH = "/v1/stores/words/keys/a"
LIMIT_S = 60.0


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenIssuer]:
    monkeypatch.setattr(issuer_keys, "FETCH_LIMIT_S", LIMIT_S)  # a busy machine is no issuer that hangs
    monkeypatch.setattr(access, "ISSUER_LIMIT_S", LIMIT_S)
    with token_issuer() as found:
        yield found


class World:
    """A guarded application, and the time that passes for its issuers and its tokens."""

    def __init__(self, issuer: TokenIssuer, keys: Keys) -> None:
        self.issuer, self.keys = issuer, keys
        self.passed_s = 0.0
        file = WatchedFile(keys.path, parse_credentials)
        self.access = Access(credentials=file, now_s=lambda: time.time() + self.passed_s)

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and have the service look at its issuers as it does once a second."""
        self.passed_s += seconds
        issuers = self.access._known._issuers
        assert issuers is not None
        issuers.look()

    @property
    def source(self) -> issuer_keys.IssuerKeys:
        issuers = self.access._known._issuers
        assert issuers is not None
        (found,) = issuers._by_issuer.values()
        return found

    async def settled(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.source._asking is not None:
                await asyncio.wait([self.source._asking])

    async def ask(self, token: str, path: str = PATH) -> tuple[int, str]:
        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            await self.access.admitted(scope, named)(scope, receive, send)

        transport = httpx.ASGITransport(guarded)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            reply = await client.get(path, headers={"authorization": f"Bearer {token}"})
            return reply.status_code, reply.text if reply.status_code == 200 else reply.json()["detail"]


async def named(scope: Scope, receive: Receive, send: Send) -> None:
    await send_reply(send, 200, authorization_of(scope).principal.name.encode(), b"text/plain")


@pytest.fixture
async def world(issuer: TokenIssuer, tmp_path: Path) -> AsyncIterator[World]:
    keys = Keys(tmp_path / "credentials.toml")
    keys.path.write_text(issuer.in_toml())
    keys.add("ann", "reader")
    made = World(issuer, keys)
    made.access.start()
    await made.settled()
    yield made
    made.access.stop()


def for_readers(issuer: TokenIssuer) -> str:
    return issuer.token(groups=["readers"])


async def test_a_token_and_a_key_are_let_in_side_by_side(world: World) -> None:
    assert await world.ask(for_readers(world.issuer)) == (200, "corp:alice")
    assert await world.ask(world.keys["ann"]) == (200, "ann")
    status, said = await world.ask(world.issuer.token())
    assert (status, "no store" in said) == (404, True), "nobody mapped anything for it"


async def test_a_token_is_checked_once_and_then_found_like_a_key_until_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = world.issuer.token(groups=["readers"], exp=int(time.time()) + 100)
    again = presented_in([(b"authorization", f"Bearer {token}".encode())])
    assert again is not None
    assert world.access.lookup(PATH.encode(), again) is None, "the ASGI way decides about what was not seen before"
    assert (await world.ask(token))[0] == 200
    with monkeypatch.context() as patched:
        patched.setattr(issuer_keys, "check_token", None)
        assert world.access.lookup(PATH.encode(), again) is not None
        assert (await world.ask(token))[0] == 200
    world.passed_s += 60
    assert world.access.lookup(PATH.encode(), again) is not None
    world.passed_s += 71
    assert world.access.lookup(PATH.encode(), again) is None
    assert await world.ask(token) == (401, "the token has expired")
    assert world.access.refused == {"expired-credential": 1}


async def test_the_issuer_exchanges_its_keys_and_no_good_token_is_refused(world: World) -> None:
    old = for_readers(world.issuer)
    assert (await world.ask(old))[0] == 200
    asked = world.issuer.asked
    world.issuer.keys.append(SigningKey("second"))
    world.pass_s(COOL_DOWN_S)
    new = [world.issuer.token(key=world.issuer.keys[-1], groups=["readers"], jti=str(number)) for number in range(5)]
    assert await asyncio.gather(*(world.ask(token) for token in new)) == [(200, "corp:alice")] * 5
    assert world.issuer.asked == asked + 1
    assert (await world.ask(old))[0] == 200


async def test_keys_that_nobody_knows_do_not_make_us_hammer_the_issuer(world: World) -> None:
    asked = world.issuer.asked
    forged = [world.issuer.token(headers={"kid": f"forged-{number}"}) for number in range(30)]
    for token in forged:
        assert (await world.ask(token))[0] == 401
    assert world.issuer.asked == asked, "it was asked at the start, just now"
    world.pass_s(COOL_DOWN_S)
    for token in forged:
        assert (await world.ask(token))[0] == 401
    assert world.issuer.asked == asked + 1


async def test_a_key_that_the_issuer_withdraws_ends_its_tokens(world: World) -> None:
    token = for_readers(world.issuer)
    presented = presented_in([(b"authorization", f"Bearer {token}".encode())])
    assert (await world.ask(token))[0] == 200
    assert world.access.lookup(PATH.encode(), presented) is not None
    del world.issuer.keys[0]
    world.pass_s(REFRESH_S)
    await world.settled()
    assert world.access.lookup(PATH.encode(), presented) is None
    assert (await world.ask(token))[0] == 401


@pytest.mark.parametrize("answer", ["500", "nothing", "garbage", "redirect", "endless"])
async def test_an_issuer_that_fails_changes_nothing_for_a_day_and_the_service_says_so(
    world: World, answer: str
) -> None:
    token = for_readers(world.issuer)
    issuer = world.issuer
    if answer == "nothing":
        issuer.close()
    issuer.status = {"500": 500, "redirect": 302}.get(answer, 200)
    issuer.answer = {"garbage": b"<html>", "endless": b"[" * 300_000}.get(answer)
    world.pass_s(REFRESH_S)
    await world.settled()
    assert "issuer corp" in world.access.causes()["issuers"]
    assert (await world.ask(token))[0] == 200
    world.pass_s(MAX_AGE_S - REFRESH_S - 60)
    await world.settled()
    fresh = issuer.token(groups=["readers"], exp=int(time.time()) + 10**6)
    assert (await world.ask(fresh))[0] == 200
    world.pass_s(61)
    assert (await world.ask(fresh))[0] == 401
    assert (await world.ask(world.keys["ann"]))[0] == 200
    if answer == "nothing":
        return
    issuer.status, issuer.answer = 200, None
    world.pass_s(COOL_DOWN_S)
    await world.settled()
    assert (await world.ask(fresh))[0] == 200
    assert world.access.causes() == {}


def test_an_answer_of_an_issuer_that_is_cut_off_is_reported_as_that() -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"a')

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        done = thread.submit(answer)
        with pytest.raises(FetchError, match="7 bytes too early"):
            _key_set_at(f"http://127.0.0.1:{listener.getsockname()[1]}/keys")
        done.result(10)


async def test_tokens_take_bounded_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "MAX_TOKENS", 3)
    tokens = [world.issuer.token(groups=["readers"], jti=str(number), key=world.issuer.keys[1]) for number in range(8)]
    before = len(world.access._known.keys)
    for token in [*tokens, *tokens]:
        assert (await world.ask(token))[0] == 200
        assert len(world.access._known.keys) <= before + 3


async def test_the_answer_tells_a_forger_nothing_and_the_log_tells_the_operator(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = SigningKey("first")
    bad = [
        world.issuer.token(key=stranger),
        world.issuer.token(headers={"kid": "other"}),
        world.issuer.token(aud="billing"),
        world.issuer.token(nbf=int(time.time()) + 1000),
    ]
    assert {await world.ask(token) for token in bad} == {(401, "the credential is not one of this service")}
    reasons = [vars(record)["reason"] for record in caplog.records if vars(record).get("action") == "audit-refused"]
    assert [reason.rpartition(" ")[2] for reason in reasons] == ["signature", "key", "audience", "yet"]
    assert not [record for record in caplog.records if bad[0].split(".")[2] in str(vars(record))]
