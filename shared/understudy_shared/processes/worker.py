"""`python -m understudy_shared.processes.worker`: one worker process. Only the supervisor starts it.

Its settings come through the channel and not as arguments: they hold passwords, and every user of the machine can read
arguments.
"""

from __future__ import annotations

import importlib
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.processes.channel import ChannelError, read_frame
from understudy_shared.processes.link import WorkerLink
from understudy_shared.processes.tie import die_with
from understudy_shared.telemetry.logs import configure_logging, name_records

log = logging.getLogger(__name__)

ServeAsWorker = Callable[[dict[str, Any], WorkerLink], None]
"""A function that serves by these settings as one of several processes, until a signal."""


def main() -> None:
    parent, control_fd, handover_fd = map(int, sys.argv[1:])
    die_with(parent)
    control = socket.socket(fileno=control_fd)
    handover = socket.socket(fileno=handover_fd) if handover_fd >= 0 else None
    try:
        order = read_frame(control)
    except ChannelError:
        return
    name_records(worker=order["worker"])
    if order["log"] is not None:
        log_format, level = order["log"]
        configure_logging(log_format=log_format, level=level)
    link = WorkerLink(order["worker"], control, handover)
    try:
        _service(order["serve"])(order["settings"], link)
    except UnderstudyError as error:
        log.error("%s", error, extra={"action": "worker-failed"})
        link.failed(error)
        sys.exit(1)


def _service(place: str) -> ServeAsWorker:
    """Return a function by `module:name`."""
    module, _, name = place.partition(":")
    serve: ServeAsWorker = getattr(importlib.import_module(module), name)
    return serve


if __name__ == "__main__":
    main()
