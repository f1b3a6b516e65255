"""Ports that are free now, for a server that is started in a moment.

The kernel gives outgoing connections their ports from the ephemeral range (Linux: 32768 and up). A port from there
that was free when it was chosen may be taken when its server starts. What is chosen here lies below that range.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from random import SystemRandom

from understudy_shared.base.errors import UnderstudyError

CHOSEN_FROM = range(20_000, 30_000)
"""Ports below the ephemeral ranges of Linux and macOS, and below the node ports of Kubernetes."""

_TRIES = 100
_random = SystemRandom()  # The common generator may be seeded alike in tests that run side by side.


def free_port() -> int:
    """Choose a loopback port that is free now."""
    return free_ports([0])[0]


def free_ports(wanted: Sequence[int]) -> list[int]:
    """Choose a port for each of `wanted`, in order, all different: the wanted port, or another one where that is 0 or
    taken.

    All are held until all are chosen.
    """
    with ExitStack() as held:
        chosen = [_bound(port, held) if port else None for port in wanted]
        return [_any(held) if port is None else port for port in chosen]


def free_ports_in_a_row(count: int) -> range:
    """Choose that many loopback ports, one after the other, that are free now."""
    for _ in range(_TRIES):
        first = _random.choice(CHOSEN_FROM)
        with ExitStack() as held:
            if all(_bound(port, held) for port in range(first, first + count)):
                return range(first, first + count)
    raise UnderstudyError(f"no {count} ports in a row are free", fix="Give a port with --port")


def _any(held: ExitStack) -> int:
    for _ in range(_TRIES):
        if port := _bound(_random.choice(CHOSEN_FROM), held):
            return port
    port = _bound(0, held)
    assert port is not None, "the kernel has a port"
    return port


def _bound(port: int, held: ExitStack) -> int | None:
    """Bind a port with a socket that `held` closes, and return its number; None when the port is taken."""
    listener = held.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        return None
    bound: int = listener.getsockname()[1]
    return bound
