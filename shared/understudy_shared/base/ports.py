"""Ports that are free now, for a server that is started in a moment.

The kernel gives outgoing connections their ports from the ephemeral range (Linux: 32768 and up). A port from there
that was free when it was chosen may be taken when its server starts. What is chosen here lies below that range.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from random import SystemRandom

CHOSEN_FROM = range(20_000, 30_000)
"""Below the ephemeral ranges of Linux, of macOS, and below the node ports of Kubernetes."""

_TRIES = 100
_random = SystemRandom()  # tests that run side by side may have seeded the common one alike


def free_port() -> int:
    """A loopback port that is free now."""
    return free_ports([0])[0]


def free_ports(wanted: Sequence[int]) -> list[int]:
    """One for each of `wanted`, in order, all different: it, or another where it is 0 or somebody has it.

    All are held until all are chosen.
    """
    with ExitStack() as held:
        chosen = [_bound(port, held) if port else None for port in wanted]
        return [_any(held) if port is None else port for port in chosen]


def _any(held: ExitStack) -> int:
    for _ in range(_TRIES):
        if port := _bound(_random.choice(CHOSEN_FROM), held):
            return port
    port = _bound(0, held)
    assert port is not None, "the kernel has a port"
    return port


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
