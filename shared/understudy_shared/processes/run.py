"""Runs a service as several worker processes from its command, until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from understudy_shared.base.words import HostInfo
from understudy_shared.processes.supervisor import WorkerOrder, WorkerSupervisor


def run_workers(
    orders: Sequence[WorkerOrder],
    *,
    host: HostInfo,
    delay_ms: int,
    started: Callable[[WorkerSupervisor], None] | None = None,
) -> None:
    """Run a service's workers until a signal, whose usual effect then follows. Called on the main thread.

    Raises UnderstudyError when a worker cannot start. The arguments are those of `WorkerSupervisor`; `started` gets it.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    received: list[int] = []

    async def serve() -> None:
        supervisor = WorkerSupervisor(orders, host=host, delay_ms=delay_ms)
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            received.append(number)
            supervisor.stop()

        for number in before:
            loop.add_signal_handler(number, stop, number)
        if started is not None:
            started(supervisor)
        await supervisor.run()

    try:
        asyncio.run(serve())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
