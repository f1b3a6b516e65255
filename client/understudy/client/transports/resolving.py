"""Addresses of a host, within a limit of time, which the system's resolver does not take from a caller."""

from __future__ import annotations

import socket
import threading
from typing import Any

Address = tuple[socket.AddressFamily, Any]


def addresses(host: str, port: int, limit_s: float) -> list[Address]:
    """Return the addresses of a host. Raises OSError."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(family, (host, port))]
    return _resolved(host, port, limit_s)


def _resolved(host: str, port: int, limit_s: float) -> list[Address]:
    found: list[Address] = []
    errors: list[OSError] = []

    def resolve() -> None:
        try:
            found.extend((each[0], each[4]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            errors.append(error if isinstance(error, OSError) else OSError(str(error)))

    thread = threading.Thread(target=resolve, name="understudy-resolver", daemon=True)
    thread.start()
    thread.join(max(0.0, limit_s))
    if errors:
        raise errors[0]
    if thread.is_alive():
        raise OSError("the resolver did not answer in time")
    return list(found)
