"""Asks a Kafka cluster for its topics' ids (KIP-516). They come with a request that only librdkafka's admin client has.

Answers come in the background. Topics of a cluster that gives no ids, or refuses the request, have no ids.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from understudy_pipeline.inputs.kafka_client import DebugLog

log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 10
"""Within the interval at which partitions are counted: no two requests are under way."""

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of a topic without one: 16 zero bytes."""


class TopicIds:
    """A client for topic ids. It starts connecting at construction. Not thread-safe."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        settings: dict[str, Any] = {**properties, "logger": DebugLog()}
        self._client = AdminClient(settings)
        self._asked: Mapping[str, Future[Any]] = {}

    def ask(self, topics: Collection[str], *, wait_ms: float) -> Mapping[str, str]:
        """Return ids that are known within `wait_ms`. An answer that comes later is taken by the next call."""
        if not topics:
            return {}
        end_s = time.monotonic() + wait_ms / 1000
        if not self._asked:
            asked = TopicCollection(list(topics))
            self._asked = self._client.describe_topics(asked, request_timeout=_REQUEST_TIMEOUT_S)
        wait(self._asked.values(), max(0.0, end_s - time.monotonic()))
        if not all(each.done() for each in self._asked.values()):
            return {}
        answers, self._asked = self._asked, {}
        return {topic: known for topic, answer in answers.items() if (known := _id_of(answer)) is not None}


def _id_of(answer: Future[Any]) -> str | None:
    try:
        text = str(answer.result().topic_id)
    except KafkaException as error:
        log.debug("a topic's id is not known: %s", error)
        return None
    return None if text == _NO_ID else text
