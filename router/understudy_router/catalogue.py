"""The stores of an application as routers know them: from the catalogue that nodes write, never from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from understudy_shared.errors import UnknownStoreError
from understudy_shared.messages import Catalogue, CatalogueStore
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import parse_schema
from understudy_shared.suggest import did_you_mean


@dataclass(frozen=True, slots=True)
class StoreRoute:
    """One store: how its keys are encoded and placed. `json_name` is its name as JSON."""

    name: str
    operator_id: int
    codec: KeyCodec
    partitions: int
    lineage: str
    application_id: str
    json_name: bytes
    shown: Mapping[str, object]

    def described(self) -> dict[str, object]:
        """What `GET /v1/stores` shows of it, without what changes."""
        return dict(self.shown)

    def task(self, partition: int) -> str:
        """The key of the task that holds a partition."""
        return f"{self.operator_id}_{partition}"


@dataclass(frozen=True, slots=True)
class Stores:
    """Every store of one catalogue; `digest` names it."""

    application_id: str
    lineage: str
    digest: str
    by_name: Mapping[str, StoreRoute]
    not_served: tuple[Mapping[str, object], ...]

    def get(self, name: str) -> StoreRoute:
        """The store of that name; UnknownStoreError names those there are."""
        route = self.by_name.get(name)
        if route is not None:
            return route
        known = ", ".join(sorted(self.by_name)) or "none"
        refused = "; ".join(f"op{each['operator_id']}: {each['reason']}" for each in self.not_served)
        hint = f" Not served: {refused}." if refused else ""
        raise UnknownStoreError(
            f"there is no store {name!r}",
            where="path",
            fix=f"{did_you_mean(name, self.by_name)}Stores here: {known}.{hint}",
        )


def stores_of(catalogue: Catalogue, digest: str) -> Stores:
    """The stores of a catalogue. Raises UnsupportedError for a key schema that this release does not read."""
    routes = {store.store: _route(store, catalogue) for store in catalogue.stores}
    return Stores(catalogue.application_id, catalogue.lineage, digest, routes, tuple(catalogue.not_served))


def _results(store: CatalogueStore) -> list[dict[str, str]]:
    """Name and type of each result; a node of an older release does not say the types."""
    types = store.result_types if len(store.result_types) == len(store.result) else ["?"] * len(store.result)
    return [{"name": name, "type": kind} for name, kind in zip(store.result, types, strict=True)]


def _route(store: CatalogueStore, catalogue: Catalogue) -> StoreRoute:
    codec = KeyCodec(
        parse_schema(store.key_schema),
        names=store.key_names,
        num_hash_columns=store.num_hash_columns,
        is_normalised=store.is_normalised,
    )
    shown: dict[str, object] = {
        "store": store.store,
        "operator_id": store.operator_id,
        "operator": store.operator,
        "key": codec.columns,
        "value": store.value,
        **({"result": _results(store)} if store.result else {}),
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
        shown,
    )
