"""The messages of this node about itself: its heartbeat and its catalogue.

It decides what to send if the full message does not validate: the least heartbeat, which shows that the node lives,
and no catalogue. `unsaid` then says why, and the next turn tries again with the state of that time.
"""

from __future__ import annotations

from pydantic import ValidationError

from understudy_node.cluster.context import MemberContext
from understudy_node.cluster.heartbeat import MemberStatus, heartbeat_of, least_heartbeat
from understudy_node.cluster.load import LoadMeter
from understudy_node.degraded import OWN_MESSAGE
from understudy_node.generation import Generation
from understudy_node.node import Node
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.plausible import Succession, succession
from understudy_shared.bus.gossip import Gossip, digest_of
from understudy_shared.bus.messages import Catalogue, CatalogueSchema, CatalogueStore, Farewell, Heartbeat

CATALOGUE_EVERY_MS = 3600 * 1000
"""Time after which a catalogue is written again: it expires after a day without a writer."""


MAX_HISTORY_BYTES = 1024 * 1024
"""Size limit of the histories of all stores together: a message of the bus has room for 4 MiB."""


def catalogue_of(generation: Generation, application_id: str) -> Catalogue:
    """Return the catalogue of a generation: the same on every node that has its layout and names."""
    return Catalogue(
        application_id=application_id,
        lineage=generation.lineage,
        partitions=generation.layout.partitions,
        stores=within_limits([_store(reader) for reader in generation.readers.values()]),
        not_served=generation.not_served(),
    )


def _store(reader: StoreReader) -> CatalogueStore:
    store = reader.store
    return CatalogueStore(
        store=store.name,
        operator_id=store.operator_id,
        operator=store.operator_name,
        kind=store.kind.value,
        key_schema=store.key_schema_json,
        key_names=list(store.codec.names),
        num_hash_columns=store.codec.num_hash_columns,
        is_normalised=store.is_normalised,
        placement=store.codec.placement.value,
        partitions=reader.partitions,
        value=store.value_columns(),
        result=list(store.results),
        unnamed=list(store.unnamed),
        schemas=[CatalogueSchema.model_validate(schema) for schema in store.schemas],
    )


def within_limits(stores: list[CatalogueStore]) -> list[CatalogueStore]:
    """Return the stores, without the histories of schemas for which a message has no room."""
    left, kept = MAX_HISTORY_BYTES, []
    for store in stores:
        left -= sum(len(schema.model_dump_json()) for schema in store.schemas)
        kept.append(store if left >= 0 else store.model_copy(update={"schemas": []}))
    return kept


class CatalogueWriter:
    """The catalogue of the generation that a node serves, made once for each generation, and published on the bus."""

    def __init__(self, node: Node, gossip: Gossip) -> None:
        self._node = node
        self._gossip = gossip
        self._made: tuple[Generation, str, Catalogue] | None = None
        self._published: tuple[str, float] | None = None

    def now(self) -> tuple[str, Catalogue] | None:
        """Return the digest and the catalogue of the serving generation; None before there is one."""
        generation = self._node.generation
        if generation is None:
            return None
        if self._made is None or self._made[0] is not generation:
            catalogue = catalogue_of(generation, self._gossip.application_id)
            self._made = (generation, digest_of(catalogue), catalogue)
        return self._made[1], self._made[2]

    def bus_came_back(self) -> None:
        """Have the catalogue published again: the bus may have lost it."""
        self._published = None

    async def tell(self, now_ms: float) -> None:
        """Write the catalogue if it is new on the bus, and every `CATALOGUE_EVERY_MS`. Raises BusError."""
        catalogue = self.now()
        if catalogue is None:
            return
        digest, document = catalogue
        published = self._published
        if published is None or published[0] != digest:  # of many nodes that start together, only one has to write it
            if await self._gossip.catalogue(digest) is None:
                await self._gossip.write_catalogue(digest, document)
            self._published = (digest, now_ms)
        elif now_ms - published[1] > CATALOGUE_EVERY_MS:
            await self._gossip.write_catalogue(digest, document)
            self._published = (digest, now_ms)


class OwnMessages:
    """The messages of one node, with their sequence numbers."""

    def __init__(self, context: MemberContext, *, zone: str, load: LoadMeter) -> None:
        self.unsaid: str | None = None
        """The reason why a message of this node cannot be sent, None if all can."""
        self._node = context.node
        self._gossip = context.gossip
        self._member_id = context.member_id
        self._zone = zone or None
        self._load = load
        self._heartbeat_ms = context.heartbeat_ms
        self._clock = context.clock
        self._sequence = 0
        self._catalogue = CatalogueWriter(context.node, context.gossip)

    def causes(self) -> dict[str, str]:
        """Return why the node is degraded by its own messages, by cause."""
        return {} if self.unsaid is None else {OWN_MESSAGE: self.unsaid}

    def heartbeat(self, status: MemberStatus) -> Heartbeat:
        """Return the next heartbeat, of the present state; the least heartbeat if it does not validate."""
        self._sequence += 1
        try:
            catalogue, now_ms = self.catalogue(), self._clock.monotonic_ms()
            return heartbeat_of(
                self._node,
                self._member_id,
                status,
                sequence=self._sequence,
                zone=self._zone,
                heartbeat_ms=self._heartbeat_ms,
                catalogue=None if catalogue is None else catalogue[0],
                load=self._load.read(now_ms),
                now_ms=now_ms,
            )
        except ValidationError as error:
            self.cannot_say("heartbeat", error)
            return least_heartbeat(
                self._node,
                self._member_id,
                status.state,
                sequence=self._sequence,
                heartbeat_ms=self._heartbeat_ms,
            )

    def farewell(self) -> Farewell:
        """Return the last message of this process."""
        node_id, incarnation = self._member_id
        return Farewell(application_id=self._gossip.application_id, node_id=node_id, incarnation=incarnation)

    def catalogue(self) -> tuple[str, Catalogue] | None:
        """Return the digest and the catalogue of the served generation; None before there is one."""
        return self._catalogue.now()

    async def write_catalogue(self, now_ms: float) -> None:
        """Write the catalogue to the bus when it is due. Raises BusError."""
        try:
            await self._catalogue.tell(now_ms)
        except ValidationError as error:
            self.cannot_say("catalogue", error)

    def bus_came_back(self) -> None:
        """Have the catalogue written again: the bus may have lost it."""
        self._catalogue.bus_came_back()

    def cannot_say(self, kind: str, error: ValidationError) -> None:
        """Note and count a message of this node that does not validate: no other process would accept it."""
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or kind
        self.unsaid = f"this node cannot send its {kind}: {place} is wrong: {first['msg']}"
        self._gossip.refuse(f"own-{kind}", self.unsaid)

    def refute(self, heard: Heartbeat) -> bool:
        """Skip past the number of a heartbeat in this process' name that this process has not sent.

        Return True if it was one.
        """
        is_own = (heard.node_id, heard.incarnation) == self._member_id
        if not is_own or heard.sequence <= self._sequence:
            return False
        self._gossip.refuse("heartbeat", f"a heartbeat in this node's own name, numbered {heard.sequence}")
        found = succession(heard.sequence, self._sequence, later_ms=0, heartbeat_ms=self._heartbeat_ms)
        if found is Succession.NEWER:
            self._sequence = heard.sequence
        return True
