"""What a node serves, as the document by which routers encode, place and describe keys (pure)."""

from __future__ import annotations

from understudy_node.generation import Generation
from understudy_node.serving.lookup import Holding
from understudy_shared.messages import Catalogue, CatalogueStore


def catalogue_of(generation: Generation, application_id: str) -> Catalogue:
    """The catalogue of a generation: the same on every node that has its layout and names, whatever it holds."""
    return Catalogue(
        application_id=application_id,
        lineage=generation.lineage,
        partitions=generation.layout.partitions,
        stores=[_store(holding) for holding in generation.holdings.values()],
        not_served=generation.not_served(),
    )


def _store(holding: Holding) -> CatalogueStore:
    store = holding.store
    return CatalogueStore(
        store=store.name,
        operator_id=store.operator_id,
        operator=store.operator_name,
        key_schema=store.key_schema_json,
        key_names=list(store.codec.names),
        num_hash_columns=store.codec.num_hash_columns,
        is_normalised=store.is_normalised,
        partitions=holding.partitions,
        value=store.value_columns(),
        result=list(store.result_names),
    )
