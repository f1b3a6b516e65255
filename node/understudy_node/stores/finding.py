"""The reader of stores whose answers are found by a `Finder`; a `StoreReader` just prints stored rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from understudy_node.engine.row_cache import RowCache
from understudy_node.replica.readings import Reading
from understudy_node.replica.task import TaskReplica
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.finder import Finder
from understudy_node.stores.lookup import ABSENT, Answer, Key, StoreReader
from understudy_node.stores.stores import ServedStore
from understudy_shared.bounds import Bound
from understudy_shared.errors import UnderstudyError
from understudy_shared.http.problems import Problem, problem_of
from understudy_shared.words import ApplicationId, Lineage


@dataclass(frozen=True, slots=True)
class FindingReader(StoreReader):
    """Answers what its `finder` finds."""

    finder: Finder
    keys_at_once: ClassVar[int] = 10
    """A key may have a thousand elements."""

    def look_up(self, key: Key, bound: Bound) -> Answer | Problem:
        reading = self.read_from(key.partition, bound)
        if isinstance(reading, Problem):
            return reading
        found = self.finder.find(reading.view, key.stored)
        said = ABSENT if found is None else found
        body = b'{"store":%b,"key":%b,%b%b' % (self.json_name, key.json, said, reading.tail)
        return Answer(404 if found is None else 200, body)

    def key_row(self, kept: bytes) -> bytes:
        return self.finder.key_row(kept)

    def first_bytes(self, view: TaskView) -> bytes | None:
        return self.finder.first_bytes(view)

    def find_many(self, rows: Sequence[bytes], reading: Reading) -> list[bytes | Problem | None]:
        view, prefix, find = reading.view, self.row_prefix, self.finder.find
        found: list[bytes | Problem | None] = []
        for row in rows:
            try:
                found.append(find(view, prefix + row))
            except UnderstudyError as error:
                found.append(problem_of(error))
        return found


def store_reader(
    store: ServedStore,
    *,
    application_id: ApplicationId,
    lineage: Lineage,
    partitions: int,
    replicas: Mapping[int, TaskReplica],
    row_prefix: bytes,
    max_key_bytes: int,
    rows: RowCache,
) -> StoreReader:
    """The reader of a store, by how it is read. `rows` remembers what was printed."""
    fields: dict[str, Any] = {
        "store": store,
        "application_id": application_id,
        "lineage": lineage,
        "partitions": partitions,
        "replicas": replicas,
        "row_prefix": row_prefix,
        "json_name": orjson.dumps(store.name),
        "layout": store.codec.layout(partitions),
        "max_key_bytes": max_key_bytes,
        "printed": rows,
        "section": rows.new_section(),
    }
    if store.make_finder is None:
        return StoreReader(**fields)
    return FindingReader(**fields, finder=store.make_finder(row_prefix))
