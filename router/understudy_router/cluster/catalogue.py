"""The stores of an application in a router, read from the catalogue that nodes write, never from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from understudy_shared.base.errors import UnknownStoreError, UnsupportedError
from understudy_shared.base.texts import did_you_mean
from understudy_shared.base.words import KeyPlacement
from understudy_shared.bus.messages import Catalogue, CatalogueStore
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.store_keys import NOT_ENCODABLE, KeyEncoding, described_key

MAX_CATALOGUE_COLUMNS = 4096
"""Most key columns of all stores together."""


@dataclass(frozen=True, slots=True)
class StoreRoute:
    """The encoding and the placement of the keys of one store. `json_name` is its name as JSON, `layout` identifies the
    encoding and placement.
    """

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
class Stores:
    """The stores of one catalogue; `digest` names it."""

    application_id: str
    lineage: str
    digest: str
    by_name: Mapping[str, StoreRoute]
    not_served: tuple[Mapping[str, object], ...]

    def place(self, task: str) -> str:
        """Return the store partition of a task as people know it: `aircraft 3`; return the task itself where its store
        is unknown.
        """
        operator_id, _, partition = task.partition("_")
        names = sorted(route.name for route in self.by_name.values() if str(route.operator_id) == operator_id)
        return f"{' and '.join(names)} {partition}" if names else task

    def get(self, name: str) -> StoreRoute:
        """Return the store of that name. Raises UnknownStoreError, which lists the stores that exist."""
        route = self.by_name.get(name)
        if route is not None:
            return route
        known = ", ".join(sorted(self.by_name)) or "none"
        refused = "; ".join(
            f"{each.get('store') or 'op' + str(each['operator_id'])}: {each['reason']}" for each in self.not_served
        )
        hint = f" Not served: {refused}." if refused else ""
        raise UnknownStoreError(
            f"there is no store {name!r}",
            where="path",
            fix=f"{did_you_mean(name, self.by_name)}Stores here: {known}.{hint}",
        )


def stores_of(catalogue: Catalogue, digest: str) -> Stores:
    """Compile the stores of a catalogue, which takes up to 2 s. Raises UnsupportedError for a catalogue that is too
    large, or whose keys this release cannot encode.
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
    return Stores(catalogue.application_id, catalogue.lineage, digest, routes, tuple(catalogue.not_served))


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
