"""A Spark standalone cluster on this machine: a master, workers with folders of their own, and jobs by `spark-submit`.

The driver has a folder for its temporary files, the source's spool among them. It can be hidden from workers and their
executors. Daemons end with this process, at the latest.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from tests.support.repository import ROOT
from tests.support.spark.process import SparkJob
from tests.support.spark.queries import wait_until
from tests.support.spark.session import LOG4J, java_environment

from understudy_shared.base.processes import tied_command
from understudy_shared.base.sockets import free_port

SPARK_HOME = Path(pyspark.__file__).parent

_HOST = "127.0.0.1"
_START_LIMIT_S = 90
_OURS = ("PYSPARK_", "PYTHON", "SPARK_")
"""Variables of this process that no daemon and no job inherits begin so."""

_QUICK_JAVA = "-Duser.timezone=UTC -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"


def repository_environment() -> dict[str, str]:
    """Makes Spark's Python that of the tests, with the checkout's packages: as if every machine had them installed."""
    ours = [path for path in sys.path if Path(path).is_relative_to(ROOT)]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([str(ROOT), *ours])),
    }


class StandaloneCluster:
    """`shared` is what driver, executors and readers of the checkpoint all see; `driver_folder` is the driver's own."""

    def __init__(self, folder: Path, environment: Mapping[str, str], hiding: Sequence[str]) -> None:
        """`hiding` goes before the commands of workers."""
        self.shared = folder / "shared"
        self.driver_folder = folder / "driver"
        self._folder = folder
        self._hiding = hiding
        self._port, self._ui_port = free_port(), free_port()
        self._daemons: dict[str, SparkJob] = {}
        self.url = f"spark://{_HOST}:{self._port}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_OURS)},
            **{name: value for name, value in java_environment().items() if name != "PYSPARK_PYTHON"},
            "SPARK_CONF_DIR": str(folder / "conf"),
            "SPARK_DAEMON_JAVA_OPTS": _QUICK_JAVA,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
            **environment,
        }

    def start(self, workers: int) -> None:
        """Start the master, then workers of one core each, and wait until the master knows them."""
        (self._folder / "conf").mkdir()
        (self._folder / "conf" / "log4j2.properties").write_text(LOG4J)
        (self._folder / "conf" / "spark-defaults.conf").write_text(self._defaults(workers))
        self._spawn("master", "master.Master", "--port", str(self._port), "--webui-port", str(self._ui_port))
        self._wait_for(lambda: self._workers() == 0, "the master")  # a worker that comes too early waits for seconds
        for number in range(1, workers + 1):
            self._spawn_worker(number)
        self._wait_for(lambda: self._workers() == workers, f"{workers} workers")

    def kill_worker(self, number: int) -> None:
        """`kill -9` of a worker and of its executors; another one takes its place."""
        self._daemons[f"worker-{number}"].kill()
        self._spawn_worker(number)

    def stop(self) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.kill()

    @contextmanager
    def submitted(self, *arguments: str) -> Iterator[SparkJob]:
        """`spark-submit` with these arguments, in the driver's folder. What still runs at the end is killed.

        Output and errors of the script are one stream there.
        """
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.url, *arguments]
        with self.shell(command) as job:
            yield job

    @contextmanager
    def shell(self, command: Sequence[str], *, cwd: Path | None = None) -> Iterator[SparkJob]:
        """Run a command as a user of the driver's machine would."""
        job = self._popen(command, self.driver_folder, self.environment, cwd or self.driver_folder)
        try:
            yield job
        finally:
            job.kill()

    def worker_files(self, name: str) -> list[Path]:
        return sorted(self._folder.glob(f"worker-*/**/{name}"))

    def _spawn_worker(self, number: int) -> None:
        work = str(self._folder / f"worker-{number}" / "work")
        self._spawn(
            f"worker-{number}", "worker.Worker", self.url,
            "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", work, hiding=self._hiding,
        )  # fmt: skip

    def _spawn(self, name: str, main_class: str, *arguments: str, hiding: Sequence[str] = ()) -> None:
        folder = self._folder / name
        daemon = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main_class}", "--host", _HOST]
        folder.mkdir(exist_ok=True)
        command = [*hiding, *tied_command(*daemon, *arguments)]
        self._daemons[name] = self._popen(command, folder, self.environment, folder)

    def _popen(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], cwd: Path) -> SparkJob:
        """A process of a group of its own, with temporary files in `folder`."""
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        output = folder / "output.txt"
        with output.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**environment, "TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(folder / "local")},
                cwd=cwd,
                start_new_session=True,
            )
        return SparkJob(process, output, output)

    def _defaults(self, workers: int) -> str:
        settings = {
            "spark.cores.max": str(workers),
            "spark.driver.bindAddress": _HOST,
            "spark.driver.extraJavaOptions": f"{_QUICK_JAVA} -Xss4m -Djava.io.tmpdir={self.driver_folder / 'tmp'}",
            "spark.driver.host": _HOST,
            "spark.driver.memory": "640m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": _QUICK_JAVA,
            "spark.executor.memory": "640m",
            "spark.python.unix.domain.socket.enabled": "false",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.shared / "warehouse"),
            "spark.ui.enabled": "false",
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items())

    def _workers(self) -> int | None:
        """How many workers the master knows; None before it answers."""
        connection = http.client.HTTPConnection(_HOST, self._ui_port, timeout=5)
        try:
            connection.request("GET", "/json/")
            found = json.loads(connection.getresponse().read())["aliveworkers"]
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return int(found)

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, what=what, limit_s=_START_LIMIT_S)
        except AssertionError as late:
            said = [path.read_text()[-2000:] for path in sorted(self._folder.glob("*/output.txt"))]
            raise AssertionError("\n".join([str(late), *said])) from None


@contextmanager
def standalone_cluster(
    folder: Path,
    *,
    workers: int = 2,
    environment: Mapping[str, str] | None = None,
    hiding: Callable[[Path], Sequence[str]] = lambda driver_folder: (),
) -> Iterator[StandaloneCluster]:
    """A cluster until the end of the block. `environment` is of all machines (default: the checkout's packages).

    `hiding` makes of the driver's folder what goes before the commands of workers.
    """
    (folder / "driver").mkdir(mode=0o700, parents=True)
    (folder / "shared").mkdir()
    given = repository_environment() if environment is None else environment
    cluster = StandaloneCluster(folder, given, hiding(folder / "driver"))
    with ExitStack() as stack:
        stack.callback((folder / "driver").chmod, 0o700)
        stack.callback(cluster.stop)
        cluster.start(workers)
        yield cluster
