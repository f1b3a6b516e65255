"""The real `understudy` command: as a process that serves, and as processes that ask it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.spark.queries import wait_until

UNDERSTUDY = str(Path(sys.executable).with_name("understudy"))
_LIMIT_S = 60


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without what it sets for Understudy, and with `variables`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("UNDERSTUDY_")}
    return {**own, **(variables or {})}


def ask(
    *arguments: str, stdin: str = "", variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. No command ever shows a traceback."""
    done = subprocess.run(
        [UNDERSTUDY, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env=environment(variables),
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


class Serving:
    """A running `understudy serve`, `node` or `router`; what it says lies in files."""

    def __init__(self, process: subprocess.Popen[bytes], data_dir: Path, output: Path, errors: Path) -> None:
        self.process = process
        self.data_dir = data_dir
        self._output = output
        self._errors = errors

    @property
    def output(self) -> str:
        """Its standard output so far."""
        return self._output.read_text()

    @property
    def errors(self) -> str:
        """Its standard error so far."""
        return self._errors.read_text()

    @property
    def url(self) -> str:
        """The URL at which the process says that it answers."""
        (found,) = re.findall(r"(?m)^(?:Serving|Routing|Ready|Node ready) at ([^\s,]+)", self.output)
        return str(found)

    def ask(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return ask(*arguments, stdin=stdin, variables={"UNDERSTUDY_URL": self.url})

    def wait_for(self, text: str) -> None:
        """Return when it has said `text`; fail with all that it said when it ended without."""

        def said() -> bool:
            return text in self.output + self.errors

        wait_until(lambda: said() or self.process.poll() is not None, what=f"{text!r} of serve", limit_s=_LIMIT_S)
        assert said(), f"exit code {self.process.returncode}\n{self.output}\n{self.errors}"

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """Interrupt it; returns its exit code."""
        self.process.send_signal(how)
        return self.process.wait(_LIMIT_S)


@contextmanager
def serving(
    arguments: Sequence[str],
    folder: Path,
    *,
    command: str = "serve",
    variables: Mapping[str, str] | None = None,
    ready: str = "Ctrl-C stops.",
) -> Iterator[Serving]:
    """Run `understudy serve`, or another command, on a free port and wait until it says `ready`; what still runs at the
    end is killed.

    `folder` takes its output, and its local copies in `data`.
    """
    data_dir = folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    output, errors = folder / "output.txt", folder / "errors.txt"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [UNDERSTUDY, command, "--port", "0", "--data-dir", str(data_dir), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(variables),
        )
    running = Serving(process, data_dir, output, errors)
    try:
        running.wait_for(ready)
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(_LIMIT_S)


def serve_on_terminal(arguments: Sequence[str], folder: Path, *, until: str) -> str:
    """Run `understudy serve` on a terminal until it shows `until`, interrupt it, and return all that was shown."""
    folder.mkdir(parents=True, exist_ok=True)
    ours, its = pty.openpty()
    shown: list[bytes] = []
    process = subprocess.Popen(
        [UNDERSTUDY, "serve", "--port", "0", "--data-dir", str(folder / "data"), *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment({"TERM": "xterm", "COLUMNS": "200", "PYTHONFAULTHANDLER": "1"}),
    )
    os.close(its)
    reader = threading.Thread(target=_read_all, args=(ours, shown))
    reader.start()

    def text() -> str:
        return b"".join(shown).decode(errors="replace")

    try:
        wait_until(lambda: until in text() or process.poll() is not None, what=until, limit_s=_LIMIT_S)
        process.send_signal(signal.SIGINT)
        try:
            ended = process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it shows the stack of each of its threads
            process.wait(_LIMIT_S)
            reader.join(_LIMIT_S)
            raise AssertionError(f"it does not end: {text()}") from None
        assert ended == 0, text()
    finally:
        process.kill()
        process.wait(_LIMIT_S)
        reader.join(_LIMIT_S)
        os.close(ours)
    return text()


def _read_all(descriptor: int, into: list[bytes]) -> None:
    """Read until the other side of the terminal is closed, which the system reports as an error."""
    try:
        while part := os.read(descriptor, 65536):
            into.append(part)
    except OSError:
        return
