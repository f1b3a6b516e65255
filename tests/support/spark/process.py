"""A Spark driver as a process of its own, so that a test can kill it the hard way, and start it again.

Driver and JVM are one process group: `kill` ends both at once, with no chance to tidy up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.repository import ROOT
from tests.support.spark.queries import wait_until
from tests.support.spark.session import SOCKET_NAME, java_environment

from understudy_shared.base.sockets import private_socket_dir

JOBS = Path(__file__).parent / "jobs"

_LIMIT_S = 240
"""What is waited for takes a tenth of it; a loaded machine gets its time."""


class SparkJob:
    """A running job; its output lies in files, so that what a killed job had said can still be read."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, errors: Path) -> None:
        self._process = process
        self._output = output
        self._errors = errors

    def lines(self) -> list[str]:
        return self._output.read_text().rpartition("\n")[0].splitlines()

    def wait_until(self, condition: Callable[[], bool], *, what: str, limit_s: float = _LIMIT_S) -> None:
        """Return when the condition holds; fail with what the job said when it ended before."""
        wait_until(lambda: condition() or self._process.poll() is not None, what=what, limit_s=limit_s)
        if not condition():
            raise AssertionError(f"the job ended before {what}:\n{self._errors.read_text()[-4000:]}")

    def wait_for_line(self, line: str, limit_s: float = _LIMIT_S) -> None:
        """Return when the job has said `line`; fail with its errors when it ended without."""
        self.wait_until(lambda: line in self.lines(), what=f"the line {line!r}", limit_s=limit_s)

    def wait_for_end(self, limit_s: float = _LIMIT_S) -> int:
        return self._process.wait(timeout=limit_s)

    def errors(self) -> list[str]:
        return self._errors.read_text().splitlines()

    def kill(self) -> None:
        """`kill -9` of the driver and its JVM. Returns when both are gone."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait(timeout=30)
        wait_until(lambda: not _has_members(self._process.pid), what="the end of the job's JVM", limit_s=30)


@contextmanager
def spark_job(
    script: str, arguments: Sequence[str], folder: Path, *, variables: Mapping[str, str] | None = None
) -> Iterator[SparkJob]:
    """Run `tests/support/spark/jobs/<script>`, or the script at an absolute path. `variables` are those of another
    release of Spark.

    Its output goes to `folder`. What still runs at the end is killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    output, errors = folder / "output.txt", folder / "errors.txt"
    # A killed job cannot remove its temporary files: they lie in a folder of ours, short enough for its sockets.
    with private_socket_dir(f"us-{'0' * 8}/{SOCKET_NAME}") as temporary:
        environment = {
            **(variables or {**os.environ, "PYTHONPATH": str(ROOT)}),
            **java_environment(),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(temporary),
        }
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, str(JOBS / script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )
        job = SparkJob(process, output, errors)
        try:
            yield job
        finally:
            job.kill()


def say(line: str) -> None:
    """Say a line in a job."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return not _all_zombies(group)


def stat_of(process: int) -> list[str]:
    """What the kernel says of a process behind its name: its state, its parent, its group."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _all_zombies(group: int) -> bool:
    """Whether only ended processes are left in the group, which an idle parent has not yet collected."""
    states = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = stat_of(int(process.name))
        except OSError:
            continue
        if int(fields[2]) == group:
            states.append(fields[0])
    return all(state == "Z" for state in states)
