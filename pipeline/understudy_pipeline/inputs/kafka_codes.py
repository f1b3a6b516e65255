"""Which of librdkafka's many errors mean the same to a reader. Its own codes begin with an underscore in Python."""
# ruff: noqa: SLF001

from __future__ import annotations

from confluent_kafka import KafkaError

END_OF_LOG = KafkaError._PARTITION_EOF
"""No error: a fetch met the end of its partition."""

NO_BROKER = KafkaError._ALL_BROKERS_DOWN

ACCESS_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE})
"""Whatever one tries: wrong secrets, wrong names."""

NO_TOPIC = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION})

OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE})
"""A position that the log does not have."""

IGNORED = frozenset({END_OF_LOG, KafkaError.GROUP_AUTHORIZATION_FAILED})
"""No failure to read. The client asks for its group's coordinator, which not every account may, and joins no group."""
