"""The thread of one server without the thread: a test takes its turns, over a scripted server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.support.clock import ManualClock
from tests.support.spark.scripted_input import ScriptedServer

from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.open_inputs import open_input
from understudy_aligned.options import AlignedOptions
from understudy_aligned.read_ahead import FetchLag
from understudy_aligned.shared_read_ahead import Prefetch, SharedReadAhead


class Bench:
    """A server, a desk, and the thread's work without the thread; the desk stands at the beginning."""

    def __init__(self, *topics: str, options: AlignedOptions | None = None) -> None:
        self.server = ScriptedServer(dict.fromkeys(topics, 1))
        self.clock = ManualClock()
        given = options or AlignedOptions(inputs=(), topics=())
        self.options = replace(given, inputs=(self.server.config,), topics=topics)
        self.shared = SharedReadAhead(self.options, self.clock)
        self.shared.ahead.seek_to({})
        self.prefetch = Prefetch(
            self.shared,
            0,
            open_input(self.server.config),
            self.clock,
            request_timeout_ms=1_000,
        )

    def turns(self, count: int) -> Sequence[float]:
        """How long it would wait after each."""
        return [self.prefetch.run_once() for _ in range(count)]

    def ready(self) -> Bench:
        """Partitions are known, and the input has sought its position."""
        assert self.turns(2) == [0, 0]
        return self

    def buffered(self, partition: TopicPartition) -> int:
        return len(self.shared.ahead.retained[partition])

    def lag(self, partition: TopicPartition) -> FetchLag | None:
        return self.shared.ahead.lags.current(partition, self.clock.monotonic_ms())
