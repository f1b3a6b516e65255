"""Asks a Kafka cluster where a new query begins: positions by offset or by time become cursors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from understudy_aligned.inputs.kafka_client import EARLIEST, LATEST, KafkaClient
from understudy_aligned.inputs.kafka_config import KafkaConfig
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.inputs.start_positions import StartPositions, cursor_at, cursor_at_time


def start_cursors(
    config: KafkaConfig, positions: StartPositions, partitions: Sequence[TopicPartition], *, timeout_ms: int
) -> Mapping[TopicPartition, Cursor]:
    """Return the cursor of each partition. Raises InputError, and SettingsError for positions that do not exist."""
    client = KafkaClient(config.server, config.client_properties)
    try:
        wanted = positions.of_partitions(partitions)
        ends = client.offsets(wanted, LATEST, timeout_ms=timeout_ms)
        if positions.offsets is not None:
            lows = client.offsets(wanted, EARLIEST, timeout_ms=timeout_ms)
            return {
                tp: cursor_at(tp, offset, low=lows[tp], end=ends[tp], option=positions.option)
                for tp, offset in wanted.items()
            }
        found = client.offsets_at(wanted, timeout_ms=timeout_ms)
        return {
            tp: cursor_at_time(tp, found.get(tp), time_ms=time_ms, end=ends[tp], positions=positions)
            for tp, time_ms in wanted.items()
        }
    finally:
        client.close()
