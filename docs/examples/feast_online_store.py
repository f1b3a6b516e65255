"""An online store of Feast over running state: a streaming aggregation is served as features, and nothing is copied.

In feature_store.yaml, with this file beside it: `online_store: {type: feast_online_store.UnderstudyOnlineStore}`, and
`url`, if it is not in UNDERSTUDY_URL. A feature view reads the store of its name, or of its tag `store`; its join keys
are the key columns, a feature is the column of its name, or of its tag `column`. The tag `event_time` names the column
with a row's time; without it that is the time of the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from feast import Entity, FeatureView, RepoConfig
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import FeastConfigBaseModel
from feast.type_map import feast_value_type_to_python_type, python_values_to_proto_values

from understudy import Client
from understudy.client.core.values import Bounds
from understudy.client.results import Result
from understudy.typed import bind

Row = tuple[datetime | None, dict[str, Value] | None]


class UnderstudyOnlineStoreConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """The settings of the store in feature_store.yaml. Only `type` is needed: else the client's variables count."""

    type: Literal["feast_online_store.UnderstudyOnlineStore"]
    url: str | None = None
    application: str | None = None
    api_key_file: str | None = None
    timeout_s: float = 1.0
    max_staleness_s: float | None = None
    """Longest time lag of an answer; an older one is an error."""


class UnderstudyOnlineStore(OnlineStore):  # type: ignore[misc]  # without Feast it is Any
    """Reads of feature views by the client. Spark writes the features, so Feast has nothing to write."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._views: dict[str, View] = {}

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKey],
        requested_features: list[str] | None = None,
    ) -> list[Row]:
        """Look the entities up. A row whose event time is further back than the view's `ttl` is not found."""
        view = self._view(config, table)
        staleness_s = config.online_store.max_staleness_s
        bounds: Bounds = {"include_expired": False}
        if staleness_s is not None:
            bounds["max_staleness"] = timedelta(seconds=staleness_s)
        keys = [key_of(each) for each in entity_keys]
        results = view.store.get_many(keys, **bounds)
        oldest = datetime.now(UTC) - table.ttl if table.ttl else None
        rows = [view.row(each, requested_features) for each in results]
        return [(None, None) if oldest and time and time < oldest else (time, row) for time, row in rows]

    def update(  # noqa: PLR0917  # Feast's own
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],
        entities_to_delete: Sequence[Entity],
        entities_to_keep: Sequence[Entity],
        partial: bool,
    ) -> None:
        """Hold each view against its store at `feast apply`. Raises ValueError for one that does not fit."""
        self._views.clear()
        for table in tables_to_keep:
            self._view(config, table).check(table)

    def online_write_batch(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: list[tuple[EntityKey, dict[str, Value], datetime, datetime | None]],
        progress: Callable[[int], Any] | None,
    ) -> None:
        """Refuse: these features are what the query's state says."""
        raise NotImplementedError(f"Spark writes {table.name}: there is nothing to materialize or to push")

    def teardown(self, config: RepoConfig, tables: Sequence[FeatureView], entities: Sequence[Entity]) -> None:
        """Let go of the views. State is the query's, and stays."""
        self._views.clear()

    def _view(self, config: RepoConfig, table: FeatureView) -> View:
        if self._client is None:
            said = config.online_store
            self._client = Client(
                said.url, application=said.application, api_key_file=said.api_key_file, timeout=said.timeout_s
            )
        if table.name not in self._views:
            self._views[table.name] = View(self._client, table)
        return self._views[table.name]


class View:
    """A feature view with its store, whose columns are asked for once."""

    def __init__(self, client: Client, table: FeatureView) -> None:
        self.store = client.store(table.tags.get("store", table.name))
        self._schema = self.store.info().schema
        self._binding = bind(self._schema)
        self._event_time = table.tags.get("event_time")
        self._types = {each.name: each.dtype.to_value_type() for each in table.features}
        self._columns = {each.name: each.tags.get("column", each.name) for each in table.features}

    def row(self, found: Result[Any], features: Sequence[str] | None) -> Row:
        """Return an answer as Feast takes it. Raises the error of a key that could not be read."""
        if not found:
            return None, None
        columns = {**self._binding.value(found.value or {}), **self._binding.result(found.result or {})}
        time = columns.get(self._event_time) if self._event_time else found.committed_at
        names = features or self._columns
        return time and time.replace(tzinfo=time.tzinfo or UTC), {
            name: value_of(columns.get(self._columns[name]), self._types[name]) for name in names
        }

    def check(self, table: FeatureView) -> None:
        """Raise ValueError unless the store has the view's join keys as its key, and its columns."""
        if self._schema["kind"] != "value":
            raise ValueError(f"{table.name} needs one value of each key; its store has a {self._schema['kind']}")
        key = {each["name"] for each in self._schema["key"]}
        joined = {each.name for each in table.entity_columns}
        if joined != key:
            raise ValueError(f"{table.name} joins by {sorted(joined)}; the key of its store is {sorted(key)}")
        there = {each["name"] for part in ("value", "result") for each in self._schema.get(part) or ()}
        wanted = {*self._columns.values(), *([self._event_time] if self._event_time else [])}
        if wanted - there:
            raise ValueError(f"the store of {table.name} has no {sorted(wanted - there)}, it has {sorted(there)}")


def key_of(entity: EntityKey) -> Mapping[str, Any]:
    """Return an entity as a key, by column."""
    pairs = zip(entity.join_keys, entity.entity_values, strict=True)
    return {name: feast_value_type_to_python_type(value) for name, value in pairs}


def value_of(value: Any, of_type: Any) -> Value:
    """Return a plain value as Feast's."""
    return Value() if value is None else python_values_to_proto_values([value], of_type)[0]
