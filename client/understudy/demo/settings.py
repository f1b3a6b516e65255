"""The demo pipeline's settings. `understudy_shared.base.service_settings` says where values come from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from understudy_shared.base.service_settings import ServiceSettings

Provider = Literal["rocksdb", "hdfs"]


class DemoSettings(ServiceSettings):
    """Settings of the demo's pipeline."""

    checkpoint: Path
    """Checkpoint location of the query: a local folder, which the nodes see too."""

    redis: str = ""
    """Redis or Valkey, shared with the nodes. Without one the pipeline announces nothing: nodes poll, and stores are
    op0 ...
    """

    input_redis: str = ""
    """Redis or Valkey that the flights pass through; by default the same. The query ends if it loses unread flights."""

    input_partitions: int = Field(2, ge=1, le=64)
    """Streams for the flights, spread by airport of departure. A checkpoint keeps to the number that it began with."""

    application_id: str = Field("flights", min_length=1, max_length=256)
    """Name of the query, the same as for the nodes."""

    provider: Provider = "rocksdb"
    """The state store: RocksDB with changelogs in checkpoint format 2, or Spark's default, HDFS-backed."""

    speed_up: float = Field(3600, ge=60, le=10_000_000, allow_inf_nan=False)
    """Simulated seconds per second. An hour a second: a commit about every half second, the year in two hours."""

    max_flights: int | None = Field(None, ge=1)
    """Number of flights after which the replay ends; all by default."""

    shuffle_partitions: int = Field(4, ge=1, le=1024)
    """Partitions of each store: two or four make the quickest batches on a few cores."""

    trigger_ms: int = Field(0, ge=0, le=3_600_000)
    """Least time from batch to batch; 0 starts the next one as soon as there are flights."""

    cores: int = Field(2, ge=1, le=64)
    """Threads that Spark works with."""

    driver_memory: str = Field("1g", pattern=r"^\d+[mg]$")
    """Heap of Spark's Java process."""

    @model_validator(mode="after")
    def _has_input(self) -> Self:
        if not self.input_url:
            raise ValueError("the flights need Redis Streams: give redis or input_redis")
        return self

    @property
    def input_url(self) -> str:
        return self.input_redis or self.redis
