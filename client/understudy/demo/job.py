"""The demo's pipeline: real flights, replayed into one Spark query, announced to the nodes.

A signal only sets a flag. The query is then stopped between two batches if it gets there in time. Otherwise Spark runs
the interrupted batch again at the next start. The job ends by itself when all flights are replayed, and with an error
when the query fails.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from understudy.demo.flights import flights_file, load_flights
from understudy.demo.query import per_aircraft, read_flights
from understudy.demo.replay import FlightStreams, Replay
from understudy.demo.session import demo_session
from understudy.demo.settings import DemoSettings
from understudy_pipeline import announce
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.processes import signals_handled

log = logging.getLogger(__name__)

_POLL_S = 0.1
_IDLE_LIMIT_S = 8.0
"""Time to wait for the query to become idle before it is stopped in the middle of a batch."""


_STARTS = 4
_OPENING, _LATE = "Initializing sources", "Python worker failed to connect back"
"""Texts of Spark's status and error."""

_TRACEBACK = "Traceback (most recent call last)"
_RAISED = re.compile(r"^[\w.]+Error: (.+)$", re.MULTILINE)
"""The last line of a traceback: the source's own message, below many lines of Spark's."""


class DemoJob:
    """Runs the query and its replay. `stop` may be called from any thread or signal handler."""

    def __init__(self) -> None:
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ask the job to end in good order."""
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def run(self, spark: SparkSession, settings: DemoSettings, replay: Replay) -> None:
        """Run until all flights are replayed and read, or until `stop`. Raises UnderstudyError if the query fails."""
        while not replay.prepare():
            if self.is_stopping:
                return
        query = self.start_with_retries(spark, settings)
        thread = threading.Thread(target=replay.run, name="understudy-replay", daemon=True)
        with ExitStack() as stack:
            stack.callback(query.stop)
            if settings.redis:
                stack.enter_context(announce(query, application_id=settings.application_id, redis=settings.redis))
            stack.callback(thread.join)
            stack.callback(replay.stop)
            thread.start()
            while query.isActive and thread.is_alive() and not self._stopping.wait(_POLL_S):
                pass
            replay.stop()
            thread.join()
            self._finish(query, settings.checkpoint)

    def start_with_retries(self, spark: SparkSession, settings: DemoSettings) -> StreamingQuery:
        """Start the query and wait for its source. Spark gives the planner only ten seconds to start, so retry."""
        starts = 0
        while True:
            starts += 1
            try:
                query = start_query(spark, settings)
            except PySparkException as error:
                raise query_failed(error, settings.checkpoint) from None
            while query.isActive and query.status["message"] == _OPENING and not self.is_stopping:
                time.sleep(_POLL_S / 10)
            failure = query.exception()
            if failure is None:
                return query
            if starts == _STARTS or _LATE not in str(failure):
                raise query_failed(failure, settings.checkpoint)
            log.warning("the source's planner started too slowly; starting again", extra={"action": "starting-again"})

    def _finish(self, query: StreamingQuery, checkpoint: Path) -> None:
        """Wait until the query is between two batches: after the last flight, or, if `stop` was called, the next."""
        try:
            if not self.is_stopping:
                query.processAllAvailable()
        except PySparkException as error:
            raise query_failed(error, checkpoint) from None
        limit_s = time.monotonic() + _IDLE_LIMIT_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < limit_s:
            time.sleep(_POLL_S / 10)
        failure = query.exception()
        if failure is not None:
            raise query_failed(failure, checkpoint)


def main() -> None:
    """Run the demo's pipeline until all flights were replayed, or SIGINT or SIGTERM.

    Raises UnderstudyError and ValidationError for what the caller can fix.
    """
    demo_settings = DemoSettings()
    path = flights_file()
    job = DemoJob()
    streams = FlightStreams(demo_settings.input_url, partitions=demo_settings.input_partitions)
    with _stopped_by_signals(job), closing(streams), ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load_flights, path)  # while Java starts
        log.info("Spark starts", extra={"action": "starting", "checkpoint": str(demo_settings.checkpoint)})
        with (
            demo_session(demo_settings) as spark,
            _stopped_by_signals(job),
        ):  # PySpark has just put its own handler in the way
            flights = loading.result()[: demo_settings.max_flights]
            replay = Replay(
                flights, streams, demo_settings.checkpoint, speed_up=demo_settings.speed_up, clock=SystemClock()
            )
            if not job.is_stopping:
                job.run(spark, demo_settings, replay)
    log.info("ended", extra={"action": "ended", "flights": replay.landed})


def start_query(spark: SparkSession, settings: DemoSettings) -> StreamingQuery:
    """Start the demo's query over the flights. Its sink discards the output."""
    writer = per_aircraft(read_flights(spark, settings)).writeStream.format("noop")
    writer = writer.queryName(settings.application_id).outputMode("update")
    writer = writer.option("checkpointLocation", str(settings.checkpoint.absolute()))
    return writer.trigger(processingTime=f"{settings.trigger_ms} milliseconds").start()


def query_failed(error: Exception, checkpoint: Path) -> UnderstudyError:
    """Return the query's error in one line of Spark's text. The JVM must still run: it formats the text."""
    text = str(error)
    raised = _RAISED.findall(text) if _TRACEBACK in text else []
    lines = raised[-1:] or [line.strip() for line in text.splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    return UnderstudyError(
        f"the query failed: {reason}", where=str(checkpoint), fix="Spark's log above has the whole error"
    )


def _stopped_by_signals(job: DemoJob) -> AbstractContextManager[None]:
    return signals_handled(job.stop, signal.SIGINT, signal.SIGTERM)
