"""The seam decides for each request anew: by the keys that count now, at this time, on the decoded route."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.services.guarded import WRONG, Keys, bearer, peer_key
from tests.support.services.wire import NoParser, Wire, connected

from understudy_shared.auth.access import Access, authorization_of
from understudy_shared.auth.cluster_secret import ClusterIdentity, parse_cluster_secrets
from understudy_shared.auth.credentials import parse_credentials
from understudy_shared.auth.presented import presented_in
from understudy_shared.base.files import WatchedFile
from understudy_shared.http.edge import Receive, Scope, Send, send_reply
from understudy_shared.http.problems import Problem
from understudy_shared.server.answers import Answers
from understudy_shared.server.direct import Exchange

HOP = b"/internal/v1/lookup"
SECRET = b"s" * 32


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = Keys(tmp_path / "credentials.toml")
    made.role("of-a", '{stores = ["a"], actions = ["point"]}')
    made.role("of-b", '{stores = ["b"], actions = ["point"]}')
    for name, role in (("ann", "of-a"), ("bob", "of-b"), ("op", "admin")):
        made.add(name, role)
    made.add("old", "of-a", expires_at=datetime(2000, 1, 1, tzinfo=UTC))
    return made


def access_of(keys: Keys, *, secret: Path | None = None, now_s: Any = None) -> Access:
    clock = {} if now_s is None else {"now_s": now_s}
    identity = ClusterIdentity(None if secret is None else WatchedFile(secret, parse_cluster_secrets), "flights")
    return Access(credentials=WatchedFile(keys.path, parse_credentials), identity=identity, accepts_peers=True, **clock)


def asked(access: Access, key: str | None, target: str, method: str = "GET") -> str:
    headers = [] if key is None else [bearer(key)]
    decided, _ = access.decide(method, target.encode(), presented_in(headers))
    return decided.type.slug if isinstance(decided, Problem) else decided.principal.name


def test_a_key_ends_at_its_time_on_requests_that_were_answered_before(tmp_path: Path) -> None:
    now = [1_000_000.0]
    keys = Keys(tmp_path / "credentials.toml")
    keys.add("ann", "reader", expires_at=datetime.fromtimestamp(now[0], UTC) + timedelta(seconds=10))
    access = access_of(keys, now_s=lambda: now[0])
    presented = presented_in([bearer(keys["ann"])])
    assert access.lookup(b"/v1/stores/a/keys/k", presented) is not None
    now[0] += 9.999
    assert access.lookup(b"/v1/stores/a/keys/k", presented) is not None
    now[0] += 0.001
    assert access.lookup(b"/v1/stores/a/keys/k", presented) is None
    decided, _ = access.decide("GET", b"/v1/stores/a/keys/k", presented)
    assert isinstance(decided, Problem)
    assert "expired" in decided.detail


def test_a_broken_file_changes_nobodys_rights_and_the_service_says_that_it_is_broken(keys: Keys) -> None:
    access, good = access_of(keys), keys.path.read_bytes()
    keys.path.write_text("[[keys]]\nid = 7\n")
    access.look()
    assert asked(access, keys["ann"], "/v1/stores/a/keys/k") == "ann"
    assert str(keys.path) in access.causes()["credentials"]
    keys.path.write_bytes(good)
    access.look()
    assert access.causes() == {}


# ---- the protocol's way, over connections that share what was parsed


class Named:
    """An application that answers with the name of whom it was told that the request is of."""

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        if b"/keys/" not in target:
            return False
        exchange.reply(200, b"text/plain", exchange.authorization.principal.name.encode())
        return True

    def accepts_body(self, target: bytes, size_bytes: int) -> bool:
        return target == HOP

    def answer_body(self, target: bytes, body: bytes, exchange: Exchange) -> None:
        exchange.reply(200, b"text/plain", b"peer")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_reply(send, 200, authorization_of(scope).principal.name.encode(), b"text/plain")


class Connections:
    """Connections of one guarded service, which share heads that were parsed."""

    def __init__(self, access: Access, count: int) -> None:
        app, self.wires = Named(), [Wire() for _ in range(count)]
        answers = Answers(direct=app, bodies=app, access=access)
        self.heads = answers.heads
        self.protocols = connected(app, answers, self.wires)

    async def ask(self, number: int, request: bytes) -> bytes:
        before = len(self.wires[number].bodies)
        self.protocols[number].data_received(request)
        for _ in range(4):  # a request that is answered by ASGI has a task
            await asyncio.sleep(0)
        (body,) = self.wires[number].bodies[before:]
        return body


def request(store: str, key: str | None, form: str) -> bytes:
    shown = b"" if key is None else b"authorization: Bearer %b\r\n" % key.encode()
    if form == "hop":
        return b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: 3\r\n\r\nabc" % (HOP, shown)
    path = f"/v1/stores/{store}" + {"lookup": "/keys/k", "schema": "", "escaped": "/keys/%6b"}[form]
    return b"GET %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (path.encode(), shown)


FORMS = st.sampled_from(["lookup", "lookup", "lookup", "escaped", "schema", "hop"])
WHO = st.sampled_from(["ann", "bob", "peer", None, "old", "wrong"])
MAY = {("ann", "a"), ("bob", "b")}
Step = tuple[int, str | None, str, str]


class World(NamedTuple):
    """A file of credentials that a test writes again: with ann's key, and without it."""

    path: Path
    texts: dict[str, str]
    with_ann: bytes
    without_ann: bytes
    identity: ClusterIdentity


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("mixed")
    keys, secret = Keys(folder / "credentials.toml"), folder / "secret"
    secret.write_bytes(SECRET)
    keys.role("of-a", '{stores = ["a"], actions = ["point"]}')
    keys.role("of-b", '{stores = ["b"], actions = ["point"]}')
    keys.add("ann", "of-a")
    keys.add("bob", "of-b")
    keys.add("old", "of-a", expires_at=datetime(2000, 1, 1, tzinfo=UTC))
    with_ann = keys.path.read_bytes()
    keys.revoke("ann")
    identity = ClusterIdentity(WatchedFile(secret, parse_cluster_secrets), "flights")
    return World(folder / "changing.toml", dict(keys), with_ann, keys.path.read_bytes(), identity)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 1), WHO, st.sampled_from("ab"), FORMS), max_size=25), st.integers(0, 25))
@example(
    [(0, "ann", "a", "lookup"), (0, "bob", "a", "lookup"), (1, None, "a", "lookup"), (1, "ann", "b", "lookup")], 25
)
@example([(0, "peer", "a", "hop"), (0, "ann", "a", "hop"), (1, None, "a", "hop"), (1, "peer", "a", "lookup")], 25)
@example([(0, "ann", "a", "lookup"), (0, "ann", "a", "lookup"), (1, "ann", "a", "lookup")], 2)
def test_no_request_is_answered_as_another_one_however_they_are_mixed(
    world: World, steps: Sequence[Step], revoked_at: int
) -> None:
    """Before the step `revoked_at`, the key of ann is revoked."""
    world.path.write_bytes(world.with_ann)
    asyncio.run(ask_all(world, steps, revoked_at))


async def ask_all(world: World, steps: Sequence[Step], revoked_at: int) -> None:
    access = Access(credentials=WatchedFile(world.path, parse_credentials), identity=world.identity, accepts_peers=True)
    connections = Connections(access, 2)
    peer = peer_key(access.identity)
    texts: dict[str | None, str | None] = {None: None, "peer": peer, "wrong": WRONG}
    texts.update(world.texts)
    for number, (connection, who, store, form) in enumerate(steps):
        if number == revoked_at:
            world.path.write_bytes(world.without_ann)
            access.look()
        body = (await connections.ask(connection, request(store, texts[who], form))).decode()
        is_known = who in {"bob", "peer"} or (who == "ann" and number < revoked_at)
        if not is_known:
            assert '"unauthenticated"' in body
        elif form == "hop":
            assert (body == "peer") if who == "peer" else ('"forbidden"' in body)
        elif (who, store) in MAY:
            assert body == who
        else:
            assert '"unknown-store"' in body


async def test_a_known_head_is_answered_without_parsing_and_still_decided(keys: Keys) -> None:
    access = access_of(keys)
    connections = Connections(access, 2)
    ann = request("a", keys["ann"], "lookup")
    assert await connections.ask(0, ann) == b"ann"
    parser = connections.protocols[1].parser
    connections.protocols[1].parser = NoParser()  # type: ignore[assignment]
    assert await connections.ask(1, ann) == b"ann"
    connections.protocols[1].parser = parser
    keys.revoke("ann")
    access.look()
    assert b'"unauthenticated"' in await connections.ask(1, ann)


async def test_refused_heads_are_not_kept_so_nobody_unknown_can_push_known_ones_out(keys: Keys) -> None:
    connections = Connections(access_of(keys), 1)
    for number in range(50):
        wrong = f"usk_{number:016x}_" + "A" * 43
        assert b'"unauthenticated"' in await connections.ask(0, request("a", wrong, "lookup"))
    assert connections.heads._young == {}


async def test_a_hop_whose_head_is_known_is_refused_once_its_secret_is_gone(keys: Keys, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    access = access_of(keys, secret=secret)
    hop = request("", peer_key(access.identity), "hop")
    connections = Connections(access, 1)
    assert [await connections.ask(0, hop) for _ in range(2)] == [b"peer", b"peer"]
    (tmp_path / "new").write_bytes(b"n" * 40)
    (tmp_path / "new").replace(secret)
    access.look()
    assert b'"unauthenticated"' in await connections.ask(0, hop)
