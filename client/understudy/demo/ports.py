"""Ports that are free now: those that were wanted, others where somebody has them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack


def free_ports(wanted: Sequence[int]) -> list[int]:
    """One for each of `wanted`, in order, all different. All are held until all are chosen."""
    with ExitStack() as held:
        chosen = [_bound(port, held) for port in wanted]
        return [_bound(0, held) if port is None else port for port in chosen]  # type: ignore[misc]  # 0 is always free


def _bound(port: int, held: ExitStack) -> int | None:
    """The port of a socket that `held` closes; None when somebody has it."""
    listener = held.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        return None
    bound: int = listener.getsockname()[1]
    return bound
