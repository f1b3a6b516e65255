"""The lag report of a node for operators: every store partition, as data."""

from __future__ import annotations

from understudy_node.node import Node
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.masking import masked_location
from understudy_shared.spark.times import utc_text


def lag_report(node: Node, store: str | None) -> dict[str, object]:
    """Return `GET /admin/v1/lag`: the query, the end, and per store its partitions with role, state and `LagInfo`."""
    generation = node.generation
    readers = generation.readers.values() if generation else ()
    end = node.end
    return {
        "generated_at": utc_text(SystemClock().wall_us()),
        "view_of": {"host": node.host.host, "port": node.host.port},
        "application_id": node.settings.application,
        "checkpoint": generation.description.url if generation else masked_location(node.settings.checkpoint),
        "lineage": node.lineage,
        "end_offset_position": end.version,
        "end_confirmed": end.confirmed_ms is not None,
        "query": node.query_status(),
        "hints": hints(node),
        "restoring_layout": None if node.pending is None else node.pending.layout.partitions,
        "stores": [_store(reader) for reader in readers if store in (None, reader.store.name)],
        "events": [event.as_dict() for event in node.events],
    }


def hints(node: Node) -> list[str]:
    """Advice on how to make this checkpoint cheaper to follow."""
    generation = node.generation
    if generation is None:
        return []
    description = generation.description
    found = []
    if generation.layout.provider == "hdfs":
        found.append("the HDFS-backed provider must be loaded whole: RocksDB opens in milliseconds")
    if description.format_version == 1:
        found.append(
            "checkpoint format v1 cannot rule out a zombie's overwrite: set checkpointFormatVersion to 2 (RocksDB)"
        )
    if description.changelogs is False:
        found.append("without changelog checkpointing every version is a whole snapshot: enable it")
    return found


def _store(reader: StoreReader) -> dict[str, object]:
    partitions = [_partition(replica) for _, replica in sorted(reader.replicas.items())]
    return {"store": reader.store.name, "operator_id": reader.store.operator_id, "partitions": partitions}


def _partition(replica: TaskReplica) -> dict[str, object]:
    view = replica.view
    lag = None if view is None else replica.progress.lag_of(view)
    return {
        "partition": replica.task.partition,
        "role": replica.role,
        "state": replica.state,
        "current_offset_position": None if lag is None else lag.current_offset_position,
        "end_offset_position": None if lag is None else lag.end_offset_position,
        "offset_lag": None if lag is None else lag.offset_lag,
        "time_lag_ms": None if lag is None else lag.time_lag_ms,
        "committed_at": None if view is None else utc_text(view.committed_at_us),
        "keys": None if view is None else sum(store.base.count() for store in view.stores.values()),
        "overlay_bytes": replica.overlay_bytes,
        "marks": [] if view is None else sorted(view.marks),
        "error": None if replica.error is None else str(replica.error),
    }
