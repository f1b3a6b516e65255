"""A real Spark session for tests, started as a user's would be but for what makes it quick and repeatable.

UTC everywhere, no user interface, unix-domain sockets to the Python workers, two cores. The checkpoint file manager is
the quick one by default (Hadoop's own forks a process a dozen times per batch); one case of a matrix runs with Spark's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession
from tests.support.repository import ROOT

from understudy.demo.java_home import end_session, java_home
from understudy_shared.base.sockets import private_socket_dir

CHECKPOINT_MANAGER_CONF = "spark.sql.streaming.checkpointFileManagerClass"
SPARK_RELEASE = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
_MANAGERS = "org.apache.spark.sql.execution.streaming" + (".checkpointing" if SPARK_RELEASE >= (4, 1) else "")
QUICK_CHECKPOINT_MANAGER = f"{_MANAGERS}.FileSystemBasedCheckpointFileManager"
SOCKET_NAME = f".{'0' * 36}.sock"
"""A name as long as Spark's own: a dot, a uuid, and the ending."""

_OPENED: tuple[str, ...] = (
    "java.lang",
    "java.lang.invoke",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "sun.nio.ch",
)
_OPENED += ("java.io", "java.lang.reflect", "java.util.concurrent.atomic", "sun.nio.cs", "sun.security.action")
_OPENED += ("sun.util.calendar",)

LOG4J = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def spark_conf(folder: Path, sockets: Path) -> dict[str, str]:
    """The settings of a test session that writes below `folder`."""
    log4j = folder / "log4j2.properties"
    log4j.write_text(LOG4J)
    java_options = (
        f"-Duser.timezone=UTC -Djava.io.tmpdir={folder} -Dlog4j.configurationFile={log4j} "
        # Short-lived and small: the quick compiler alone pays, with room for what it makes of many generated classes.
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
    )
    if SPARK_RELEASE < (3, 3):  # made for Java 11: later ones open these themselves
        java_options += "".join(f" --add-opens=java.base/{each}=ALL-UNNAMED" for each in _OPENED)
    return {
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.python.unix.domain.socket.dir": str(sockets),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        CHECKPOINT_MANAGER_CONF: QUICK_CHECKPOINT_MANAGER,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def java_environment() -> dict[str, str]:
    """What a process needs in its environment to start Spark here."""
    home = java_home(ROOT / ".cache")
    # Workers run in the Python of the tests, even if another `python3` is on the path.
    python = {"PYSPARK_PYTHON": sys.executable}
    return {"JAVA_HOME": str(home.path), "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC", **python}


@contextmanager
def spark_session(folder: Path, *, extra: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session whose files are all below `folder`; its JVM has ended when the block has.

    Raises RuntimeError within another one: a process has one JVM, and the other would end with this one.
    """
    if SparkContext._active_spark_context is not None:
        raise RuntimeError("this process has a session already, which would end with this one")
    os.environ.update(java_environment())
    folder.mkdir(parents=True, exist_ok=True)
    with private_socket_dir(SOCKET_NAME) as sockets:
        conf = {**spark_conf(folder, sockets), **(extra or {})}
        builder = SparkSession.builder.appName("understudy-tests").master("local[2]")
        for key, value in conf.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            end_session(session)
