"""The Spark process of the proof: started, killed with its JVM, started again, and asked for the truth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict
from pathlib import Path

from tests.support.oracle.releases import variables_of
from tests.support.repository import ROOT
from tests.support.spark.formats import StateFormat
from tests.support.spark.process import SparkJob
from tests.support.spark.session import SOCKET_NAME, java_environment
from tests.system.proof import query
from tests.system.proof.storage import Storage
from tests.system.proof.subjects import Subject

from understudy_shared.base.processes import tied_command
from understudy_shared.base.sockets import private_socket_dir

TRUTH_LIMIT_S = 7200
"""Of every kind of state Spark reads a version in a few seconds. A process that ends is noticed at once."""

WITH_ADDED = "--with-added"


class SparkDriver:
    """One query over all its lives. `temporary` is short enough for Spark's sockets. `line`: the release line whose
    newest Spark begins the query; empty: the Spark of the tests.
    """

    def __init__(
        self,
        storage: Storage,
        folder: Path,
        temporary: Path,
        *,
        state_format: StateFormat,
        every_ms: int,
        subject: Subject,
        snapshots_often: bool,
        line: str,
    ) -> None:
        self._storage, self._location = storage, storage.location
        self._folder = folder
        self._temporary = temporary
        self._arguments = ["--format", json.dumps(asdict(state_format)), "--every-ms", str(every_ms)]
        self._arguments += ["--query", subject.name, "--conf", json.dumps(dict(storage.session_conf))]
        if snapshots_often:
            self._arguments.append("--snapshots-often")
        self._began_with = self._line = line
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._job: SparkJob | None = None

    def start(self) -> None:
        """Start the driver; it goes on where the last one stopped."""
        self._lives += 1
        folder = self._folder / f"life-{self._lives}"
        folder.mkdir(parents=True)
        output, errors = folder / "output.txt", folder / "errors.txt"
        inherited = variables_of(self._line) if self._line else os.environ
        own = [self._location, "--folder", str(folder), *self._arguments]
        with output.open("wb") as out, errors.open("wb") as err:
            self._process = subprocess.Popen(
                tied_command(sys.executable, "-m", query.__name__, *own),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env={**inherited, **java_environment(), "PYTHONUNBUFFERED": "1", "TMPDIR": str(self._temporary)},
                start_new_session=True,
            )
        self._job = SparkJob(self._process, output, errors)

    def on_a_copy(self, checkpoint: Path, folder: Path) -> SparkDriver:
        """The driver of the same query that goes on, with other rows, on a copy of its checkpoint."""
        other = copy(self)
        other._location, other._folder = str(checkpoint), folder
        other.take_other_rows()
        other._lives, other._process, other._job = 0, None, None
        return other

    def take_other_rows(self) -> None:
        """Have the query take other rows from its next start on."""
        self._arguments = [*self._arguments, "--other-rows"]

    @property
    def has_added(self) -> bool:
        """Whether the query keeps another state variable when it is started next."""
        return WITH_ADDED in self._arguments

    def add_variable(self) -> None:
        """Have the query keep another state variable from its next start on."""
        self._arguments = [*self._arguments, WITH_ADDED]

    def change_release(self) -> None:
        """Have the Spark of the tests run the query from its next start on, or again the one that began it."""
        self._line = "" if self._line else self._began_with

    def freeze(self) -> None:
        """Stop driver and JVM where they are."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def wait_until_it_runs(self) -> None:
        assert self._job is not None
        self._job.wait_for_line(query.STARTED)

    def kill(self) -> None:
        """`kill -9` of driver and JVM, in any batch they are in. No effect when they do not run."""
        if self._job is not None:
            self._job.kill()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def write_truth(self, path: Path) -> None:
        """Stop the query for good and have Spark write the truth about every version to `path`."""
        if self._line:  # Spark 3 has no reader of its own state
            self.kill()
            self._line = ""
            self._arguments = [*self._arguments, "--truth-alone"]
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._job is not None
        self._process.stdin.write(f"truth {path}\n".encode())
        self._process.stdin.flush()
        if "://" in self._location:
            self._job.wait_for_line(query.AT_REST)
            self._storage.copy(self._folder / f"life-{self._lives}" / query.COPY)
        self._job.wait_for_line(query.TRUTH_WRITTEN, TRUTH_LIMIT_S)


@contextmanager
def spark_driver(
    storage: Storage,
    folder: Path,
    *,
    state_format: StateFormat,
    every_ms: int,
    subject: Subject,
    snapshots_often: bool = False,
    line: str = "",
) -> Iterator[SparkDriver]:
    """A query until the end of the block, already starting; its logs lie in `folder`."""
    with private_socket_dir(f"us-{'0' * 8}/{SOCKET_NAME}") as temporary:
        driver = SparkDriver(
            storage,
            folder,
            temporary,
            state_format=state_format,
            every_ms=every_ms,
            subject=subject,
            snapshots_often=snapshots_often,
            line=line,
        )
        driver.start()
        try:
            yield driver
        finally:
            driver.kill()
