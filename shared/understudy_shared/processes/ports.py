"""The ports of a service of several processes."""

from __future__ import annotations

from contextlib import ExitStack

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.ports import free_ports_in_a_row
from understudy_shared.server.service import bound_socket

MAX_PORT = 65_535


def ports_from(host: str, first: int, count: int) -> range:
    """Return that many ports from `first` on, or from any port when that is 0.

    They are free now: a port in use is refused before any process starts. Raises UnderstudyError.
    """
    if not first:
        return free_ports_in_a_row(count)
    require_ports(first, count)
    ports = range(first, first + count)
    with ExitStack() as held:
        for port in ports:
            held.enter_context(bound_socket(host, port))
    return ports


def require_ports(first: int, count: int) -> None:
    """Raise SettingsError unless there are that many ports from `first` on."""
    last = first + count - 1
    if last > MAX_PORT:
        raise SettingsError(f"the last of {count} ports would be {last}", where="processes", fix="Lower the port")
