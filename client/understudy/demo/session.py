"""A small, quiet local Spark: no user interface, UTC, Unix sockets, and a temporary folder that is removed."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from understudy.demo.java_home import java_home
from understudy.demo.query import state_conf
from understudy.demo.settings import DemoSettings
from understudy_shared.base.sockets import private_socket_dir

_SOCKET_NAME = f".{'0' * 36}.sock"
"""A name as long as Spark's socket names: a dot, a UUID, and the suffix."""

_END_S = 15

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


def end_session(session: SparkSession) -> None:
    """Stop the session and its JVM, which PySpark would keep until this process ends."""
    context = session.sparkContext
    gateway = context._gateway  # noqa: SLF001  # PySpark has no public way
    session.stop()
    if gateway is None:
        return
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()
        process.wait(timeout=_END_S)
    type(context)._gateway = None  # noqa: SLF001
    type(context)._jvm = None  # noqa: SLF001
