"""What is told of records, and of topics, that are not there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches

from understudy_pipeline.inputs.protocol import DataLostError, UnknownTopicError
from understudy_pipeline.inputs.records import TopicPartition

log = logging.getLogger(__name__)

_TOPICS_LISTED = 20


def describe_loss(position: int, *, low: int, end: int) -> str | None:
    """Why a reader cannot go on at `position` in a log of offsets `low` to before `end`; None when it can."""
    if position < low:
        return f"records from offset {position} on are gone: the log begins at offset {low} by now"
    if position > end:
        return f"the log ends at offset {end}, before offset {position}: it was cut or made anew"
    return None


def report_loss(partition: TopicPartition, lost: str, server: str, *, is_error: bool) -> None:
    """Raises DataLostError, or logs a warning."""
    if is_error:
        raise DataLostError(
            lost,
            where=f"{partition} at {server}",
            fix="Keep records for longer than this query may be away, or set fail_on_data_loss to false to go on at "
            "what is left",
        )
    log.warning("%s: %s; going on at what is left", partition, lost, extra={"action": "data_lost"})


def unknown_topic(name: str, topics: Sequence[str], server: str) -> UnknownTopicError:
    """With the names that look like it, or those that there are."""
    similar = get_close_matches(name, topics, cutoff=0.7)
    there_are = ", ".join(topics[:_TOPICS_LISTED]) + (", ..." if len(topics) > _TOPICS_LISTED else "")
    told = f"Did you mean {' or '.join(similar)}?" if similar else f"There are: {there_are or 'none'}"
    return UnknownTopicError(f"there is no topic '{name}'", where=f"Kafka at {server}", fix=told)
