"""The real `understudy sql --serve mysql` as a process, and clients of it."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
from tests.support.services.command_line import UNDERSTUDY, environment
from tests.support.spark.queries import wait_until

_LIMIT_S = 60


class MysqlServer:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Path) -> None:
        self.process, self._errors = process, errors
        self.port = 0

    @property
    def errors(self) -> str:
        """Its standard error so far."""
        return self._errors.read_text()

    def connect(self, key: str = "", **given: Any) -> Any:
        """A connection of PyMySQL."""
        options = {"connect_timeout": _LIMIT_S, "read_timeout": 200, "database": "understudy", **given}
        return pymysql.connect(host="127.0.0.1", port=self.port, user="reader", password=key, **options)

    def descriptors(self) -> int:
        """The number of its open files."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def threads(self) -> int:
        """The number of its threads."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def stop(self) -> int:
        """End it by a signal; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_LIMIT_S)


@contextmanager
def mysql_server(
    url: str, folder: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> Iterator[MysqlServer]:
    """Run a server on a free port of loopback. At the end of the block it ends by a signal, without a word."""
    folder.mkdir(parents=True, exist_ok=True)
    errors = folder / "errors.txt"
    with errors.open("wb") as err:
        process = subprocess.Popen(
            [UNDERSTUDY, "sql", "--serve", "mysql", "--listen", "127.0.0.1:0", "--url", url, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=err,
            env=environment(variables),
        )
    running = MysqlServer(process, errors)
    try:
        wait_until(
            lambda: "MySQL at" in running.errors or process.poll() is not None, what="a server", limit_s=_LIMIT_S
        )
        found = re.search(r"MySQL at 127\.0\.0\.1:(\d+),", running.errors)
        assert found, running.errors
        running.port = int(found[1])
        yield running
        if process.poll() is None:
            assert running.stop() == 0, running.errors
        assert len(running.errors.splitlines()) == 1, running.errors
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(_LIMIT_S)


def rows(connection: Any, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """The rows of a statement."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())
