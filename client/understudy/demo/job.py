"""The demo's pipeline: real flights, replayed into one Spark query, announced to the nodes.

The query is one to copy: per tail number, how often and when last it flew, and its departure delays. It has one
aggregation, in update mode: Spark's checks are on. Its sink discards the output, as readers look up the state. By the
alias `announce` names the store.

A signal only sets a flag. The query is then stopped between two batches if it gets there in time. Otherwise Spark runs
the interrupted batch again at the next start. The job ends by itself when all flights are replayed, and with an error
when the query fails.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention
from pyspark.sql.streaming.query import StreamingQuery

from understudy.demo.flights import (
    FLIGHTS_SCHEMA,
    TOPIC,
    FlightStreams,
    Replay,
    busy_flights,
    flights_file,
    load_flights,
)
from understudy.demo.java_home import end_session, java_home
from understudy.demo.settings import DemoSettings, Provider
from understudy_pipeline import announce
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.processes import signals_handled
from understudy_shared.base.sockets import private_socket_dir

WRITES_PER_BATCH = 4
"""Busy writes of the replay in one micro-batch when the query is behind."""

_STREAMING = "spark.sql.streaming"
_STATE = "org.apache.spark.sql.execution.streaming.state"


def state_conf(provider: Provider) -> Mapping[str, str]:
    """Spark settings of the state stores. With RocksDB: changelogs, and unique ids for the files of each attempt."""
    if provider == "hdfs":
        return {f"{_STREAMING}.stateStore.providerClass": f"{_STATE}.HDFSBackedStateStoreProvider"}
    return {
        f"{_STREAMING}.stateStore.providerClass": f"{_STATE}.RocksDBStateStoreProvider",
        f"{_STREAMING}.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        f"{_STREAMING}.stateStore.checkpointFormatVersion": "2",
        # Hadoop's own manager forks a process a dozen times per batch on a local disk. This one is faster, but protects
        # less against two queries in one checkpoint. Format 2 keeps their files apart.
        f"{_STREAMING}.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }


def read_flights(spark: SparkSession, settings: DemoSettings) -> DataFrame:
    """Read the stream of flights, merged by event time over all airports."""
    source = spark.readStream.format("understudy").option("topics", TOPIC).option("redis", settings.input_url)
    source = source.option("partitions", settings.input_partitions).option("merge", "global")
    source = source.option("max_poll_records", WRITES_PER_BATCH * busy_flights(settings.speed_up))
    source = source.option("checkpoint", str(settings.checkpoint.absolute()))
    flight = F.from_json(F.col("value").cast("string"), FLIGHTS_SCHEMA).alias("flight")
    return source.load().select(flight).select("flight.*")


def per_aircraft(flights: DataFrame) -> DataFrame:
    """Group by tail number. Flights without one form a group, too."""
    groups = flights.groupBy("tailnum").agg(
        F.count("*").alias("flights"),
        F.max("event_time").alias("last_seen"),
        F.sum("dep_delay").alias("dep_delay_total"),
        F.avg("dep_delay").alias("dep_delay_mean"),
        F.max("dep_delay").alias("dep_delay_max"),
    )
    return groups.alias("aircraft")


_SOCKET_NAME = f".{'0' * 36}.sock"
"""A name as long as Spark's socket names: a dot, a UUID, and the suffix."""


_LOG4J = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
# When Python starts Spark, this logger sets the level of all others.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def session_conf(settings: DemoSettings, *, folder: Path, sockets: Path) -> Mapping[str, str]:
    """Return the settings of the session. Its files are below `folder`."""
    java_options = (
        f"-Duser.timezone=UTC -Djava.io.tmpdir={folder} {_log4j_option(folder)} "
        # Small batches on few cores: the quick compiler alone, with room for the classes that Spark generates, and
        # more stack for the regular expressions that Spark runs over errors.
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -Xss4m"
    )
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": settings.driver_memory,
        "spark.local.dir": str(folder / "local"),
        "spark.python.unix.domain.socket.dir": str(sockets),
        "spark.python.unix.domain.socket.enabled": "true",
        # A batch has tens of rows: interpreting it is faster than compiling its classes.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **state_conf(settings.provider),
    }


@contextmanager
def demo_session(settings: DemoSettings) -> Iterator[SparkSession]:
    """Open a session for the block. Its JVM has ended when the block has. Raises NoJavaError."""
    os.environ.update(
        {
            "JAVA_HOME": str(java_home().path),
            "PYSPARK_PYTHON": sys.executable,  # for the source's planner and readers; Spark's default is on PATH
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TZ": "UTC",
        }
    )
    folder = Path(tempfile.mkdtemp(prefix="understudy-spark-"))
    try:
        quiet_spark(folder)
        with private_socket_dir(_SOCKET_NAME) as sockets:
            builder = SparkSession.builder.appName("understudy-demo").master(f"local[{settings.cores}]")
            for key, value in session_conf(settings, folder=folder, sockets=sockets).items():
                builder = builder.config(key, value)
            session = builder.getOrCreate()
            try:
                yield session
            finally:
                end_session(session)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def quiet_spark(folder: Path) -> str:
    """Hide the log lines and warnings at start and end, which do not concern a reader. Call this before Spark starts.

    Errors stay. Return a Java option: it names a file that this writes into `folder`.
    """
    (folder / "log4j2.properties").write_text(_LOG4J)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    return _log4j_option(folder)


def _log4j_option(folder: Path) -> str:
    return f"-Dlog4j.configurationFile={folder / 'log4j2.properties'}"


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
