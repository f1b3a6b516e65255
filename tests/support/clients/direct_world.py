"""A cluster without I/O for tests of direct routing: a router's own metadata, and nodes and routers that are functions.

Node N listens at `127.0.0.1:PORT`, as the router's tables say; the router is `127.0.0.1:1`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from tests.support.clients.steps import World, answer, found
from tests.support.router.tables import APPLICATION, LINEAGE, assigned, beat, port_of, route, task

from understudy.client.core.exchange import Outcome, Reply, Send
from understudy.client.core.lookups import get, get_many
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.core.state import ClientState
from understudy_router.cluster.tables import Tables
from understudy_router.http.app import MetadataCall
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.tokens import Position

PARTITIONS, ROUTER_PORT = 8, 1
NODES = "abcd"
ROUTE = route(partitions=PARTITIONS)
BY_PORT = {port_of(node_id): node_id for node_id in NODES}

Document = dict[str, Any]


def position(version: int = 3, *, lineage: str = LINEAGE, application: str = APPLICATION) -> str:
    return Position(ApplicationId(application), Lineage(lineage), version, None).encode()


def node_answer(key: str, node_id: str = "a", **members: Any) -> Document:
    """What a running, active replica says of a key."""
    lag = {"current_offset_position": 3, "end_offset_position": 3, "offset_lag": 0, "time_lag_ms": 12}
    by = {"host": "127.0.0.1", "port": port_of(node_id), "role": "active", "state": "RUNNING"}
    return {**found(key, position=position()), "lag": lag, "served_by": by, **members}


def owner(partition: int) -> str:
    """The active node of a partition in the first assignment."""
    return NODES[partition % len(NODES)]


def assignment_of(order: tuple[int, int] = (1, 1), owns: Callable[[int], str] = owner) -> Any:
    return assigned({f"0_{at}": task(owns(at)) for at in range(PARTITIONS)}, order=order, partitions=PARTITIONS)


def metadata(
    order: tuple[int, int] = (1, 1), owns: Callable[[int], str] = owner, bounds: Mapping[str, object] | None = None
) -> MetadataCall:
    """What a router says of the store `words` by an assignment."""
    tables = Tables()
    tables.assigned(assignment_of(order, owns), 0)
    for node_id in NODES:
        tables.heard(beat(node_id, partitions=PARTITIONS), age_ms=0, now_ms=0)
    return MetadataCall(tables, ROUTE, bounds or {})


def reply_of(found: MetadataCall) -> Reply:
    return Reply(200, "application/json", b"".join(found.pieces()), "", found.etag())


class DirectWorld(World):
    """Answers metadata as a router does; tests set what nodes and routers say of keys."""

    def __init__(self) -> None:
        super().__init__(self._served)
        self.known: MetadataCall | Outcome = metadata()
        self.at_node: Callable[[str, Send], Outcome] = lambda node_id, send: answer(node_says(node_id, send))
        self.at_router: Callable[[Send], Outcome] = lambda send: answer(node_says("router", send))
        self.metadata_at: list[float] = []
        self.by_port = BY_PORT
        self._readers: dict[ClientState, Reader] = {}

    def client(self, *, addresses: Mapping[str, str] | None = None, **settings: Any) -> ClientState:
        """The state of a client with direct routing."""
        state = self.state(settings.pop("url", f"http://127.0.0.1:{ROUTER_PORT}"), **settings)
        state.is_direct, state.addresses = True, addresses
        return state

    def reader(self, state: ClientState) -> Reader:
        """The one reader of a client, with its direct routing."""
        if state not in self._readers:
            self._readers[state] = Reader(state)
        return self._readers[state]

    def warm(self, state: ClientState) -> BoundStore:
        """A store whose metadata the client has fetched; what was sent for it is forgotten."""
        store = BoundStore(self.reader(state), "words")
        direct = store.reader.direct
        assert direct is not None
        self.run(direct.get("words", ["warm"], {}, lambda _: "/warm", self.now_s + 5))
        self.now_s += 1
        self.run(direct.get("words", ["warm"], {}, lambda _: "/warm", self.now_s + 5))
        self.sent.clear()
        return store

    def _served(self, send: Send, _: World) -> Outcome:
        if send.request.target.endswith("/metadata"):
            self.metadata_at.append(self.now_s)
            if not isinstance(self.known, MetadataCall):
                return self.known
            if dict(send.headers).get("if-none-match") == self.known.etag():
                return Reply(304, "", b"", "", self.known.etag())
            return reply_of(self.known)
        node_id = BY_PORT.get(send.endpoint.port)
        return self.at_router(send) if node_id is None else self.at_node(node_id, send)

    def asked_of(self) -> list[str]:
        """The nodes that were asked, in order; `router` for the router, `metadata` for its metadata."""
        return [
            "metadata" if each.request.target.endswith("/metadata") else BY_PORT.get(each.endpoint.port, "router")
            for each in self.sent
        ]


def keys_of(send: Send) -> list[str]:
    """The words that a request is about."""
    if send.request.body is None:
        return [send.request.target.partition("?")[0].rpartition("/")[2]]
    return [key[0] if isinstance(key, list) else key["word"] for key in orjson.loads(send.request.body)["keys"]]


def node_says(node_id: str, send: Send, **members: Any) -> Document:
    """What a node, or the router, answers: the value tells who it was."""
    if send.request.body is None:
        (key,) = keys_of(send)
        return node_answer(key, node_id, value={"by": node_id}, **members)
    shared = {name: value for name, value in node_answer("", node_id, **members).items() if name in _SHARED}
    items = [
        {"status": 200, "key": {"word": key}, "found": True, "value": {"by": node_id}, "read": 0}
        for key in keys_of(send)
    ]
    return {"store": "words", "reads": [shared], "results": items}


_SHARED = ("partition", "version", "committed_at", "watermark", "lag", "served_by", "position")


KEYS = [f"word-{number}" for number in range(40)]
"""Keys of every partition."""


def partition_of(key: str) -> int:
    return ROUTE.codec.partition((key,), PARTITIONS)


def owned_by(node_id: str) -> str:
    """A key whose active replica is at this node."""
    return next(key for key in KEYS if owner(partition_of(key)) == node_id)


def read(world: DirectWorld, store: BoundStore, *key: Any, **bounds: Any) -> str:
    """Who answered."""
    result = world.run(get(store, key, bounds, world.now_s + 5))
    return str(result.value["by"])


def read_many(world: DirectWorld, store: BoundStore, keys: list[Any], **bounds: Any) -> list[str]:
    results = world.run(get_many(store, keys, bounds, world.now_s + 5))
    return [f"error {each.error.type}" if each.error is not None else each.value["by"] for each in results]
