"""A guarded fleet of applications that say who asked them for what, with keys of several grants."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from tests.support.services.guarded import Keys, bearer

from understudy_shared.auth.access import Access, authorization_of
from understudy_shared.auth.credentials import parse_credentials
from understudy_shared.auth.presented import presented_in
from understudy_shared.auth.principals import Authorization
from understudy_shared.base.files import WatchedFile
from understudy_shared.fleet.dispatching import Fleet, Served
from understudy_shared.http.edge import JSON_TYPE, Receive, Scope, Send, send_reply
from understudy_shared.server.direct import Exchange


class Application:
    """An application that says who asked it for what."""

    def __init__(self, name: str, *stores: str) -> None:
        self.name, self.stores = name, stores

    def has_store(self, store: str) -> bool:
        return store in self.stores

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        exchange.reply(200, JSON_TYPE, self.said(target, exchange.authorization))
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_reply(send, 200, self.said(scope["raw_path"], authorization_of(scope)), JSON_TYPE)

    def said(self, target: bytes, granted: Authorization) -> bytes:
        actions = sorted({action for grant in granted.principal.grants for action in grant.actions})
        return json.dumps([self.name, target.decode("latin-1"), actions]).encode()


FLEET = {"orders-1": ("op0", "only-1"), "orders-2": ("op0",), "clicks": ("op0", "secret"), "späte": ("late",)}
ROLES = {
    "orders": '{stores = ["*"], actions = ["point", "monitor"], applications = ["orders-*"]}',
    "first": '{stores = ["op0"], actions = ["point"], applications = ["orders-1"]}',
    "late": '{stores = ["*"], actions = ["point", "admin"], applications = ["sp*"]}',
    "of-op0": '{stores = ["op0"], actions = ["point"]}',
    "operator": '{stores = ["*"], actions = ["admin"], applications = ["orders-1"]}',
}


class World(NamedTuple):
    """A guarded fleet, of fakes, and its keys."""

    keys: Keys
    fleet: Fleet[Served]

    async def ask(
        self, who: str | None, path: str, *headers: tuple[bytes, bytes], method: str = "GET"
    ) -> tuple[int, str, Scope]:
        """Return status, body and scope of a request with that key; None: without any."""
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": b""}

        shown = [*([] if who is None else [bearer(self.keys[who])]), *headers]
        raw, query = path.partition("?")[0], path.partition("?")[2].encode()
        scope = {"type": "http", "method": method, "raw_path": raw.encode(), "path": raw, "query_string": query}
        scope["headers"] = shown
        await self.fleet(scope, receive, send)
        return sent[0]["status"], sent[1]["body"].decode(), scope

    def quickly(self, who: str, path: str) -> bool:
        return self.fleet.access.lookup(path.encode(), presented_in([bearer(self.keys[who])])) is not None


def fleet_world(folder: Path) -> World:
    keys = Keys(folder / "credentials.toml")
    for name, grant in ROLES.items():
        keys.role(name, grant)
    for name in (*ROLES, "monitor", "admin", "reader"):
        keys.add(name, name)
    fleet: Fleet[Served] = Fleet(Application("fleet"), Access(credentials=WatchedFile(keys.path, parse_credentials)))
    for name, stores in FLEET.items():
        fleet.add(name, cast(Served, SimpleNamespace(app=Application(name, *stores), is_ready=True)))
    return World(keys, fleet)
