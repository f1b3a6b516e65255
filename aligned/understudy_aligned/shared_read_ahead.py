"""`ReadAhead` behind one lock, shared by the planner and by a thread for each server, which does all I/O with it.

A prefetch thread takes its next request here and hands the answer back. The planner takes records out. Rule: a server
that is slow, unreachable or hangs delays only its own thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from understudy_aligned.batch_plan import InputState, has_more, is_waited_for
from understudy_aligned.inputs.protocol import ClientQueue, Fetched, Input, InputError
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.options import AlignedOptions
from understudy_aligned.read_ahead import ReadAhead
from understudy_shared.base.clock import Clock


class CountPartitions(NamedTuple):
    """Count the partitions of the server's topics, and ask for the topics' ids."""


class Seek(NamedTuple):
    """Continue after these cursors."""

    cursors: Mapping[TopicPartition, Cursor]
    generation: int


class Fetch(NamedTuple):
    """Fetch up to `wanted` records of each partition."""

    wanted: Mapping[TopicPartition, int]
    generation: int
    wait_ms: int


InputRequest = CountPartitions | Seek | Fetch


log = logging.getLogger(__name__)

COUNT_INTERVAL_MS = 10_000
"""Interval at which partitions are counted. A new partition is read within this time."""

FETCH_WAIT_MS = 100
"""Longest wait for a first record. Another partition may need a fetch by then, or a lag may be due."""

BUSY_FETCH_WAIT_MS = 20
"""The same while a partition of the server is paused for memory: it may be resumed at any moment."""


class Outage(NamedTuple):
    """A server that does not answer: for how long (`since_ms`), its last error, and for how long the query waits."""

    since_ms: float
    error: str
    waits_ms: float | None = None
    """None: the query does not wait for it (`is_waited_for`)."""


@dataclass(slots=True)
class _BrokerState:
    name: str
    topics: Container[str]
    count_due_ms: float = float("-inf")
    away_since_ms: float | None = None
    heard: set[TopicPartition] = field(default_factory=set)
    """Partitions that brought records or lags since the last failure."""
    has_answered: bool = False
    """Whether all of its partitions brought records or lags once."""
    error: str = ""
    waits_since_ms: float | None = None
    """Since when the query waits for it. Only a server that is away has this."""
    losses: int = 0
    client_queue: ClientQueue | None = None


class SharedReadAhead:
    """`changed` is the lock and is notified of every change. Methods take it; hold it to use `ahead` and `failure`."""

    def __init__(self, options: AlignedOptions, clock: Clock) -> None:
        self.changed = threading.Condition()
        self.ahead = ReadAhead(options)
        self.failure: Exception | None = None
        """The error that stopped an input for good."""
        self.last_arrival_ms = clock.monotonic_ms()
        """The time when the last records arrived."""
        self._clock = clock
        self._options = options
        self._fetch_wait_ms = max(1, min(FETCH_WAIT_MS, options.lag_max_age_ms // 4))
        self._servers = [_BrokerState(config.server, config.topics) for config in options.inputs]

    def next_request(self, index: int) -> InputRequest | None:
        """Return the next request to server number `index`. None: there is nothing to do now."""
        with self.changed:
            server, ahead = self._servers[index], self.ahead
            if self._clock.monotonic_ms() >= server.count_due_ms:
                return CountPartitions()
            if pending_seeks := ahead.pending_seeks(server.topics):
                return Seek(pending_seeks, ahead.generation)
            if wanted := ahead.records_to_fetch(server.topics):
                is_busy = any(tp.topic in server.topics and tp not in wanted for tp in ahead.retained)
                wait_ms = min(self._fetch_wait_ms, BUSY_FETCH_WAIT_MS) if is_busy else self._fetch_wait_ms
                return Fetch(wanted, ahead.generation, wait_ms)
            return None

    def wait(self, limit_ms: float) -> None:
        """Wait until something changed, at most `limit_ms`."""
        with self.changed:
            self.changed.wait(limit_ms / 1000)

    def set_topics(self, index: int, counts: Mapping[str, int], topic_ids: Mapping[str, str]) -> None:
        """Take the answer to `CountPartitions`. Raises SettingsError and DataLostError."""
        with self.changed:
            self._servers[index].count_due_ms = self._clock.monotonic_ms() + COUNT_INTERVAL_MS
            read = self.ahead.join_found(counts)
            self.ahead.set_topic_ids({topic: each for topic, each in topic_ids.items() if topic in self.ahead.ranks})
            self.ahead.set_partition_counts(read)
            self.changed.notify_all()

    def seek_done(self, index: int, turn: Seek) -> None:
        with self.changed:
            self.ahead.seek_done(turn.cursors.keys(), generation=turn.generation)
            self.changed.notify_all()

    def add_fetched(self, index: int, turn: Fetch, fetched: Fetched, *, asked_ms: float) -> None:
        """Take the result of a `Fetch` that was sent at `asked_ms`.

        A result without records and lags is not an answer: a dead server gives such results between two errors. A
        cluster counts as back when every wanted partition brought records or a lag, so when all brokers are back.
        """
        with self.changed:
            server = self._servers[index]
            server.heard |= {chunk.partition for chunk in fetched.chunks} | fetched.lags.keys()
            if turn.wanted.keys() <= server.heard:
                server.has_answered = True
                self._mark_reachable(server)
            now_ms = self._clock.monotonic_ms()
            self.ahead.add_fetched(fetched, generation=turn.generation, asked_ms=asked_ms, now_ms=now_ms)
            if fetched.chunks:
                self.last_arrival_ms = now_ms
            self.changed.notify_all()

    def is_away(self, index: int) -> bool:
        """Whether the server failed, and has not answered since."""
        with self.changed:
            return self._servers[index].away_since_ms is not None

    def mark_unreachable(self, index: int, error: InputError) -> None:
        """Mark a server that did not answer: log it once, and treat its lags as unknown until it does."""
        with self.changed:
            server = self._servers[index]
            self.ahead.mark_unreachable(server.topics)
            # By the time that its server answers again, a topic may be gone, or have been created again.
            server.count_due_ms = float("-inf")
            server.heard.clear()
            server.error = str(error)
            if server.away_since_ms is None:
                server.away_since_ms = self._clock.monotonic_ms()
                log.warning("an input cannot be read now: %s", error, extra={"action": "away", "server": server.name})
            self.changed.notify_all()

    def stop_input(self, index: int, error: Exception) -> None:
        """Stop an input whose thread has failed: it reads no more. The planner raises the first such error."""
        with self.changed:
            self.ahead.mark_unreachable(self._servers[index].topics)
            self.failure = self.failure or error
            self.changed.notify_all()

    def update_waits(self) -> None:
        """Find out which unreachable servers the query waits for. Log each wait once.

        The log line that the input is read again marks its end.
        """
        with self.changed:
            if all(server.away_since_ms is None for server in self._servers):
                return
            inputs = self._input_states()
            slowest = None if self._options.max_drift_ms is None else self.ahead.held_back.slowest
            for server in self._servers:
                if server.away_since_ms is None or not is_waited_for(
                    server.topics,
                    inputs,
                    max_task_idle_ms=self._options.max_task_idle_ms,
                    topic_idle_ms=self._options.topic_idle_ms,
                    slowest=slowest,
                ):
                    server.waits_since_ms = None
                elif server.waits_since_ms is None:
                    server.waits_since_ms = self._clock.monotonic_ms()
                    log.warning(
                        "the query waits for an input that is away, because its records may be next: %s",
                        server.error,
                        extra={"action": "waits-for-input", "server": server.name},
                    )

    def set_input_state(self, index: int, losses: int, client_queue: ClientQueue | None) -> None:
        """Note how often server number `index` continued after lost records, and the queue of its client's library."""
        with self.changed:
            self._servers[index].losses, self._servers[index].client_queue = losses, client_queue

    def losses(self) -> int:
        """Count how often reading continued after lost records."""
        with self.changed:
            return self.ahead.losses + sum(server.losses for server in self._servers)

    def client_queue(self) -> ClientQueue | None:
        """Add up the queues of the clients' libraries. None if all of them are unknown."""
        with self.changed:
            known = [server.client_queue for server in self._servers if server.client_queue is not None]
        return ClientQueue(*map(sum, zip(*known, strict=True))) if known else None

    def starting(self) -> Sequence[str]:
        """List servers that have not answered for all of their partitions yet: their ends are unknown."""
        with self.changed:
            return [server.name for server in self._servers if self._is_starting(server)]

    def has_more(self) -> bool:
        """Whether a later plan may find records without new ones being written (`batch_plan.has_more`)."""
        with self.changed:
            away = [server.topics for server in self._servers if server.away_since_ms is not None]
            is_held_back = not away and any(self.ahead.retained.values())  # quick: as in `batch_plan.has_more`
            return is_held_back or bool(self.starting()) or has_more(self._input_states(), away=away)

    def server_names(self) -> Sequence[str]:
        """List every server, whether it answers or not."""
        return [server.name for server in self._servers]

    def outages(self) -> Mapping[str, Outage]:
        """Return the servers that do not answer now, by name."""
        with self.changed:
            now_ms = self._clock.monotonic_ms()
            return {
                server.name: Outage(
                    now_ms - server.away_since_ms,
                    server.error,
                    None if server.waits_since_ms is None else now_ms - server.waits_since_ms,
                )
                for server in self._servers
                if server.away_since_ms is not None
            }

    def _input_states(self) -> Mapping[TopicPartition, InputState]:
        ahead, now_ms = self.ahead, self._clock.monotonic_ms()
        return {
            tp: InputState(not held, None if lag is None else lag.records, tp in ahead.finished)
            for tp, held in ahead.retained.items()
            for lag in [ahead.lags.current(tp, now_ms)]
        }

    def _is_starting(self, server: _BrokerState) -> bool:
        ahead = self.ahead
        if not ahead.is_counted or server.has_answered:
            return not ahead.is_counted
        return any(tp.topic in server.topics and tp not in ahead.finished for tp in ahead.retained)

    def _mark_reachable(self, server: _BrokerState) -> None:
        if server.away_since_ms is not None:
            server.away_since_ms = server.waits_since_ms = None
            log.info("an input is read again", extra={"action": "back", "server": server.name})


FIRST_BACKOFF_MS = 100
MAX_BACKOFF_MS = 5_000
"""Pause before the next try of a server that does not answer. It doubles from the first to this."""

REST_MS = 100
"""Longest time until the thread asks for its next request again."""


class Prefetch:
    """A thread that reads ahead on one input from `start` to `stop`. It closes the input."""

    def __init__(
        self, shared: SharedReadAhead, index: int, reads: Input, clock: Clock, *, request_timeout_ms: int
    ) -> None:
        self._shared = shared
        self._index = index
        self._input = reads
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._backoff_ms = FIRST_BACKOFF_MS
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"understudy-prefetch-{index}", daemon=True)

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further request. Does not wait."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread, and return whether it has ended. If its input hangs, it ends when that call returns."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def run_once(self) -> float:
        """Run the next request. Return the milliseconds to wait before the one after it."""
        try:
            return self._run_request()
        except InputError as error:
            self._shared.mark_unreachable(self._index, error)
            wait_ms, self._backoff_ms = self._backoff_ms, min(2 * self._backoff_ms, MAX_BACKOFF_MS)
            return wait_ms
        finally:
            self._shared.set_input_state(self._index, self._input.losses, self._input.client_queue)

    def _run_request(self) -> float:
        asked_ms = self._clock.monotonic_ms()
        match request := self._shared.next_request(self._index):
            case CountPartitions():
                counts = self._input.partitions(timeout_ms=self._request_timeout_ms)
                ids = self._input.topic_ids(counts.keys(), timeout_ms=self._request_timeout_ms)
                self._shared.set_topics(self._index, counts, ids)
            case Seek():
                self._input.seek(request.cursors, timeout_ms=self._request_timeout_ms)
                self._shared.seek_done(self._index, request)
            case Fetch():
                fetched = self._input.fetch(request.wanted, timeout_ms=request.wait_ms)
                self._shared.add_fetched(self._index, request, fetched, asked_ms=asked_ms)
            case None:
                self._shared.wait(REST_MS)
        if not self._shared.is_away(self._index):
            self._backoff_ms = FIRST_BACKOFF_MS
        return 0

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if wait_ms := self.run_once():
                    self._stopping.wait(wait_ms / 1000)
        except Exception as error:  # any error: the query must not wait for records that no thread fetches
            self._shared.stop_input(self._index, error)
        finally:
            self._input.close()
