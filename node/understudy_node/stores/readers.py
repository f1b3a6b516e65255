"""The readers of all stores of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from understudy_node.checkpoint.description import CheckpointDescription
from understudy_node.engine.base import RowCache
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.finding import store_reader
from understudy_node.stores.lookup import StoreReader
from understudy_node.stores.stores import StoreAlias, served_stores
from understudy_shared.base.words import ApplicationId, StoreName


def store_readers(  # what readers are made of
    description: CheckpointDescription,
    aliases: Mapping[str, StoreAlias],
    *,
    application_id: ApplicationId,
    row_prefix: bytes,
    max_key_bytes: int,
    replicas: Mapping[int, Mapping[int, TaskReplica]],
    rows: RowCache,
) -> dict[StoreName, StoreReader]:
    """Make the readers of all stores. `replicas` are those of each operator, by partition; `rows` caches printed rows.

    `row_prefix` is what the provider puts before a row.
    """
    partitions = {operator.operator_id: operator.partitions for operator in description.operators}
    return {
        name: store_reader(
            store,
            application_id=application_id,
            lineage=description.query_id,
            partitions=partitions[store.operator_id],
            replicas=replicas.get(store.operator_id, {}),
            row_prefix=row_prefix,
            max_key_bytes=max_key_bytes,
            rows=rows,
        )
        for name, store in served_stores(description, aliases).items()
    }
