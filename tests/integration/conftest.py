"""What several files of this folder share because it is dear to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.kafka.broker import KafkaBroker, kafka_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real Kafka broker. A test that kills or freezes it sets it going again."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as found:
        yield found
