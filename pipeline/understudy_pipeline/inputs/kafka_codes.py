"""Groups librdkafka's error codes by what they mean to a reader. Its own codes begin with an underscore in Python."""
# ruff: noqa: SLF001

from __future__ import annotations

from confluent_kafka import KafkaError

END_OF_LOG = KafkaError._PARTITION_EOF
"""Not an error: a fetch reached the end of its partition (an end-of-partition event)."""

NO_BROKER = KafkaError._ALL_BROKERS_DOWN

ACCESS_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE})
"""Errors that trying another broker does not mend: wrong credentials, wrong host names."""

NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION})

OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE})
"""The position is not in the log."""

IGNORED = frozenset({END_OF_LOG, KafkaError.GROUP_AUTHORIZATION_FAILED})
"""Errors that do not affect reading. The client looks up a group coordinator although it joins no group; some accounts
may not do that."""
