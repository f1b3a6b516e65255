"""Errors and warnings about lost records and unknown topics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches

from understudy_pipeline.inputs.protocol import DataLostError, UnknownTopicError
from understudy_pipeline.inputs.records import TopicPartition

log = logging.getLogger(__name__)

_TOPICS_LISTED = 20


def describe_loss(position: int, *, low: int, end: int) -> str | None:
    """Say why a reader cannot continue at `position` in a log from `low` to before `end`. None if it can."""
    if position < low:
        return f"records from offset {position} on are gone: the log now begins at offset {low}"
    if position > end:
        return f"the log ends at offset {end}, before offset {position}: it was truncated or created again"
    return None


def report_loss(partition: TopicPartition, lost: str, server: str, *, is_error: bool) -> None:
    """Raise DataLostError if `is_error`, else log a warning."""
    if is_error:
        raise DataLostError(
            lost,
            where=f"{partition} at {server}",
            fix="Keep records for longer than this query may be stopped, or set fail_on_data_loss to false to continue "
            "at what is left",
        )
    extra = {"action": "data-lost", **partition._asdict()}
    log.warning("%s: %s; continuing at what is left", partition, lost, extra=extra)


def unknown_topic(name: str, topics: Sequence[str], server: str) -> UnknownTopicError:
    """Make the error for a topic that does not exist. It names similar topics, or those that exist."""
    similar = get_close_matches(name, topics, cutoff=0.7)
    there_are = ", ".join(topics[:_TOPICS_LISTED]) + (", ..." if len(topics) > _TOPICS_LISTED else "")
    fix = f"Did you mean {' or '.join(similar)}?" if similar else f"There are: {there_are or 'none'}"
    return UnknownTopicError(f"there is no topic '{name}'", where=f"Kafka at {server}", fix=fix)
