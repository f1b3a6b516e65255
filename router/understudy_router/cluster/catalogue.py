"""The stores of an application in a router: read from the catalogue that nodes write, on the bus, else from a node;
never from a checkpoint.

A catalogue that cannot be read is retried; one that cannot be used is not, and the last usable one stays in use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from understudy_router.cluster.tables import Tables
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import NoSuchStoreError, UnderstudyError, UnsupportedError
from understudy_shared.base.texts import did_you_mean
from understudy_shared.base.words import KeyPlacement
from understudy_shared.bus.gossip import Gossip, digest_of
from understudy_shared.bus.messages import Catalogue, CatalogueStore
from understudy_shared.cluster.follower import jittered_s
from understudy_shared.cluster.node_calls import NodeCalls
from understudy_shared.cluster.without_bus import Memory
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.store_keys import NOT_ENCODABLE, KeyEncoding, described_key

log = logging.getLogger(__name__)

MAX_CATALOGUE_COLUMNS = 4096
"""Most key columns of all stores together."""


@dataclass(frozen=True, slots=True)
class StoreRoute:
    """The encoding and the placement of the keys of one store, which `layout` identifies."""

    name: str
    operator_id: int
    codec: KeyCodec
    partitions: int
    lineage: str
    application_id: str
    json_name: bytes
    layout: str
    shown: Mapping[str, object]
    schemas: Sequence[Mapping[str, object]]
    """The history of its schemas."""
    encoding: Mapping[str, object]
    """The encoding of its keys, for clients that place keys themselves."""

    def described(self) -> dict[str, object]:
        """Return the constant part of its entry in `GET /v1/stores`."""
        return dict(self.shown)

    def task(self, partition: int) -> str:
        """Return the key of the task that holds a partition."""
        return f"{self.operator_id}_{partition}"


@dataclass(frozen=True, slots=True)
class CatalogueStores:
    """The stores of one catalogue; `digest` names it."""

    application_id: str
    lineage: str
    digest: str
    by_name: Mapping[str, StoreRoute]
    not_served: tuple[Mapping[str, object], ...]

    def place(self, task: str) -> str:
        """Return a task's name for people: `aircraft 3`; its own if its store is unknown."""
        operator_id, _, partition = task.partition("_")
        names = sorted(route.name for route in self.by_name.values() if str(route.operator_id) == operator_id)
        return f"{' and '.join(names)} {partition}" if names else task

    def get(self, name: str) -> StoreRoute:
        """Return the store of that name. Raises NoSuchStoreError, which lists the stores that exist."""
        route = self.by_name.get(name)
        if route is not None:
            return route
        known = ", ".join(sorted(self.by_name)) or "none"
        refused = "; ".join(
            f"{each.get('store') or 'op' + str(each['operator_id'])}: {each['reason']}" for each in self.not_served
        )
        hint = f" Not served: {refused}." if refused else ""
        raise NoSuchStoreError(
            f"there is no store {name!r}",
            where="path",
            fix=f"{did_you_mean(name, self.by_name)}Stores here: {known}.{hint}",
        )


def stores_of(catalogue: Catalogue, digest: str) -> CatalogueStores:
    """Compile the stores of a catalogue, which takes up to 2 s. Raises UnsupportedError for a catalogue that is too
    large, or has keys that this release cannot encode.
    """
    names = [store.store for store in catalogue.stores]
    columns = sum(store.key_schema.count('"name"') for store in catalogue.stores)
    if len(set(names)) != len(names):
        raise UnsupportedError("the catalogue has two stores of one name", where="the catalogue")
    if columns > MAX_CATALOGUE_COLUMNS:
        raise UnsupportedError(
            f"the catalogue has {columns} key columns, above {MAX_CATALOGUE_COLUMNS}", where="the catalogue"
        )
    if not all({"operator_id", "reason"} <= each.keys() for each in catalogue.not_served):
        raise UnsupportedError("the catalogue gives no reason for a store that is not served", where="the catalogue")
    try:
        routes = {store.store: _route(store, catalogue) for store in catalogue.stores}
    except NOT_ENCODABLE as error:
        what = f"the catalogue does not let keys be encoded: {type(error).__name__}: {error!s:.200}"
        raise UnsupportedError(what, where="catalogue", fix="Find out what writes to that Redis") from None
    return CatalogueStores(catalogue.application_id, catalogue.lineage, digest, routes, tuple(catalogue.not_served))


def _route(store: CatalogueStore, catalogue: Catalogue) -> StoreRoute:
    encoding = KeyEncoding(
        store.kind,
        store.key_schema,
        store.key_names,
        store.num_hash_columns,
        store.is_normalised,
        KeyPlacement(store.placement),
    )
    codec = encoding.codec()
    shown: dict[str, object] = {
        "store": store.store,
        "operator_id": store.operator_id,
        "operator": store.operator,
        "kind": store.kind,
        "placement": store.placement,
        **described_key(codec, store.kind),
        "value": store.value,
        **({"result": store.result} if store.result else {}),
        **({"unnamed": store.unnamed} if store.unnamed else {}),
        "partitions": store.partitions,
        "lineage": catalogue.lineage,
        "application_id": catalogue.application_id,
    }
    return StoreRoute(
        store.store,
        store.operator_id,
        codec,
        store.partitions,
        catalogue.lineage,
        catalogue.application_id,
        orjson.dumps(store.store),
        codec.layout(store.partitions),
        shown,
        [schema.model_dump() for schema in store.schemas],
        encoding.document(codec, store.partitions),
    )


RETRY_MS = 200
"""Least time between two readings: nodes' refusals may request one thousands of times a second."""

MAX_UNUSABLE = 64
"""Most catalogues that are remembered as unusable."""

MAX_ASKED = 16
"""Most nodes that are asked for one catalogue in a row; nodes of the assignment first."""

COMPLAINT_GAP_MS = 60_000
"""Least time between two log lines about catalogues that cannot be read."""


class CatalogueFollower:
    """The `stores` of one router. Set `news` when the tables changed."""

    def __init__(
        self,
        gossip: Gossip,
        tables: Tables,
        nodes: NodeCalls,
        memory: Memory,
        *,
        bus_lost_why: Callable[[], str | None],
        clock: Clock,
    ) -> None:
        """Set the sources; while there is a `bus_lost_why`, the bus is not asked."""
        self.stores: CatalogueStores | None = None
        self.last_error: str | None = None
        self.has_learned = asyncio.Event()
        """An event that is set once the catalogue, the assignment and a heartbeat are known: from then on reads can be
        routed."""
        self.news = asyncio.Event()
        self._gossip = gossip
        self._tables = tables
        self._nodes = nodes
        self._memory = memory
        self._bus_lost_why = bus_lost_why
        self._clock = clock
        self._unusable: dict[str, str] = {}
        """The reasons why catalogues cannot be used, by hash."""
        self._complained_ms = float("-inf")
        self._doubted = False

    @property
    def unusable(self) -> str | None:
        """The reason why the nodes' catalogue cannot be used, `None` while it can. The last usable one stays in use."""
        digest = self._tables.catalogue_digest
        why = None if digest is None else self._unusable.get(digest)
        return None if why is None else f"catalogue {digest} cannot be used: {why}"

    def doubt(self) -> None:
        """Ask the nodes for their catalogue, not the bus, because a node serves by another one than this router."""
        self._doubted = True
        self.news.set()

    def place(self, task: str) -> str:
        """Return the store partition of a task for people, by its store's name if that is known."""
        return task if self.stores is None else self.stores.place(task)

    async def run(self) -> None:
        """Read the catalogue whenever the nodes serve by another one, for ever."""
        while True:
            await self.news.wait()
            self.news.clear()
            self._note_learned()
            digest = self._tables.catalogue_digest
            is_known = self.stores is not None and self.stores.digest == digest
            doubted, self._doubted = self._doubted and is_known, False
            if digest is None or (is_known and not doubted):
                continue
            found = await self.read(digest, from_bus=not doubted)
            if found is not None:
                catalogue, self.stores = found
                self.last_error = None
                self._note_learned()
                self._memory.note(catalogue)
                counted = len(self.stores.by_name)
                log.info("%d stores of lineage %s", counted, catalogue.lineage, extra={"action": "catalogue"})
            if found is None or doubted:  # refusals may come thousands of times a second: limit the reading for them
                self._doubted |= found is None and doubted
                await asyncio.sleep(jittered_s(RETRY_MS))
                self.news.set()

    async def read(self, digest: str, *, from_bus: bool = True) -> tuple[Catalogue, CatalogueStores] | None:
        """Read the catalogue from the bus, else from a node; None when no usable one can be read now."""
        if digest in self._unusable:
            return None
        why = self._bus_lost_why()
        if why is None and not from_bus:
            why = "the nodes serve by another catalogue than the one in Redis"
        elif why is None:
            try:
                found = await self._gossip.catalogue(digest)
                if found is not None:
                    return found, await self._compiled(found, digest)
                why = "it is not in Redis"
            except UnderstudyError as error:  # Redis is away, or this release cannot read those keys
                why = str(error)
        tell = [node for node in self._tables.nodes.values() if node.heartbeat.catalogue == digest]
        tell.sort(key=lambda node: node.heartbeat.node_id not in self._tables.holders)
        for node in tell[:MAX_ASKED]:
            try:
                catalogue = await self._nodes.catalogue(node.heartbeat.endpoint.host_info())
                if digest_of(catalogue) == digest:
                    return catalogue, await self._compiled(catalogue, digest)
                why = f"{node.heartbeat.node_id} serves by another catalogue"
            except UnderstudyError as error:
                why = str(error)
            if digest in self._unusable:
                break
        self._complain(digest, why)
        return None

    def _complain(self, digest: str, why: str) -> None:
        now_ms = self._clock.monotonic_ms()
        if why != self.last_error and now_ms - self._complained_ms >= COMPLAINT_GAP_MS:
            self._complained_ms = now_ms
            log.warning("no catalogue %s: %s", digest, why, extra={"action": "no-catalogue"})
        self.last_error = why

    async def _compiled(self, catalogue: Catalogue, digest: str) -> CatalogueStores:
        """Compile the stores of a catalogue. Raises UnderstudyError; the same bytes are not tried again."""
        try:
            return await asyncio.to_thread(stores_of, catalogue, digest)
        except Exception as error:
            why = str(error) if isinstance(error, UnderstudyError) else repr(error)[:500]
            while len(self._unusable) >= MAX_UNUSABLE:
                del self._unusable[next(iter(self._unusable))]
            self._unusable[digest] = why
            self._gossip.refuse("catalogue", f"catalogue {digest}: {why}")
            raise UnderstudyError(why) from error

    def _note_learned(self) -> None:
        if self.stores is not None and self._tables.assignment is not None and self._tables.nodes:
            self.has_learned.set()
