"""Reads features with Feast: python -m tests.support.clients.feast_reads URL. It runs with Feast before all else on its
path, answers each line of JSON of its input, and prints a line for each.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, RepoConfig, ValueType
from feast.types import Array, Bytes, Float64, Int64, UnixTimestamp

TYPES = {"long": Int64, "double": Float64, "bytes": Bytes, "longs": Array(Int64), "time": UnixTimestamp}


def view_of(name: str, keys: dict[str, str], columns: dict[str, str], ttl_s: float, tags: dict[str, str]) -> list[Any]:
    """Return a feature view and its entities."""
    entities = [Entity(name=key, join_keys=[key], value_type=ValueType[of]) for key, of in keys.items()]
    schema = [Field(name=each, dtype=TYPES[of]) for each, of in columns.items()]
    source = FileSource(name=name, path="none.parquet", timestamp_field="event_timestamp")  # writes want one
    view = FeatureView(
        name=name, entities=entities, schema=schema, ttl=timedelta(seconds=ttl_s), tags=tags, source=source
    )
    return [*entities, view]


def answer(store: FeatureStore, asked: dict[str, Any]) -> Any:
    """Do what a line asks for."""
    match asked:
        case {"apply": view}:
            store.apply(view_of(**view))
            return "applied"
        case {"write": view, "row": row}:
            store.write_to_online_store(view, pd.DataFrame([{**row, "event_timestamp": datetime.now(UTC)}]))
            return "written"
        case _:
            found = store.get_online_features(features=asked["features"], entity_rows=asked["rows"])
            times = found.proto.results[-1].event_timestamps
            return {**found.to_dict(), "times": [each.ToDatetime(UTC) for each in times]}


def _text(value: Any) -> str:
    text: str = value.hex() if isinstance(value, bytes) else value.isoformat()
    return text


def main() -> None:
    with TemporaryDirectory() as folder:
        online_store = {"type": "feast_online_store.UnderstudyOnlineStore", "url": sys.argv[1], "max_staleness_s": 5}
        config = RepoConfig(
            project="tests", provider="local", registry=str(Path(folder) / "registry.db"),
            online_store=online_store, entity_key_serialization_version=3,
        )  # fmt: skip
        store = FeatureStore(config=config)
        for line in sys.stdin:
            try:
                said = answer(store, json.loads(line))
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            sys.stdout.write(f"\n{json.dumps(said, default=_text)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
