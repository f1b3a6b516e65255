"""The document with which routers encode, place and describe keys, and its publication on the bus."""

from __future__ import annotations

from understudy_node.generation import Generation
from understudy_node.node import Node
from understudy_node.stores.lookup import StoreReader
from understudy_shared.bus.gossip import Gossip, digest_of
from understudy_shared.bus.messages import Catalogue, CatalogueSchema, CatalogueStore

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
