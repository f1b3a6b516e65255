"""`python -m understudy_shared.processes.worker SUPERVISOR`: one worker process. Only the supervisor starts it.

Its order comes through stdin and not as arguments: settings hold passwords, and every user of the machine can read
arguments. When it refuses to start, stdout has the reason for the supervisor, and nothing else.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import orjson

from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.processes.tie import die_with
from understudy_shared.telemetry.logs import configure_logging, name_records

ServeAsWorker = Callable[[dict[str, Any], int], None]
"""A function that serves by these settings as the worker of this number, until a signal."""


def main() -> None:
    die_with(int(sys.argv[1]))
    reason = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = orjson.loads(sys.stdin.buffer.read())
    if order["log"] is not None:
        log_format, level = order["log"]
        configure_logging(log_format=log_format, level=level)
        name_records(worker=order["worker"])
    try:
        _service(order["serve"])(order["settings"], order["worker"])
    except UnderstudyError as error:
        os.write(reason, refusal(error))
        sys.exit(1)


def refusal(error: UnderstudyError) -> bytes:
    """Return the words of an error for the supervisor."""
    words = {"what": error.what, "where": error.where, "fix": error.fix}
    return orjson.dumps({"of_settings": isinstance(error, SettingsError), "words": words})


def refused(found: bytes) -> UnderstudyError | None:
    """Return the error of which `refusal` made the last of these lines; None if it is of something else, or nothing."""
    try:
        document = orjson.loads(found.rpartition(b"\n")[2])
        return (SettingsError if document["of_settings"] else UnderstudyError)(**document["words"])
    except (ValueError, KeyError, TypeError):
        return None


def _service(place: str) -> ServeAsWorker:
    """Return a function by `module:name`."""
    module, _, name = place.partition(":")
    serve: ServeAsWorker = getattr(importlib.import_module(module), name)
    return serve


if __name__ == "__main__":
    main()
