"""The addresses of nodes: which of those that metadata names may be asked, and where they are reached (pure).

A node that is asked gets the client's credential, so an address that is in doubt is not used: a router answers instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from understudy.client.core.endpoints import Endpoint, parse_endpoint
from understudy.client.errors import UsageError

_NAME = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*(?!0x)[a-z0-9_-]*[a-z_-][a-z0-9_-]*")
"""A name in lower case. One whose last part is a number is an address in disguise: `127.1`."""


class NodeAddresses:
    """The way to nodes: by the scheme of the routers, to the addresses that they advertise or are mapped to.

    Rule: with a mapping only nodes that it names are asked. Certificates have the name that the node advertises.
    """

    def __init__(self, routers: Sequence[Endpoint], mapping: Mapping[str, str] | None) -> None:
        """Take the mapping of advertised addresses to those that are reached from here. Raises UsageError."""
        schemes = {each.scheme for each in routers}
        if len(schemes) > 1:
            what = "nodes would be asked by the scheme of their router, and the routers have two"
            raise UsageError(what, where="urls", fix="Name all routers by https, or leave routing='direct' out")
        (self._scheme,) = schemes
        self._mapping = None if mapping is None else {_parsed(name): _parsed(to) for name, to in mapping.items()}

    def __repr__(self) -> str:
        return f"NodeAddresses({self._scheme}, {self._mapping})"

    def endpoint(self, host: str, port: int, router: Endpoint) -> Endpoint | None:
        """Return where a node is asked that metadata of this router names; None where it is not."""
        host = host.lower()
        if not 0 < port < 65536 or len(host) > 253:
            return None
        is_loopback = _is_loopback(host)
        if is_loopback is None:
            return None
        if self._mapping is not None:
            found = self._mapping.get((host, port))
            return None if found is None else Endpoint(self._scheme, *found, "" if found[0] == host else host)
        if is_loopback and not _is_loopback(router.host):
            return None  # on this machine it is another's
        return Endpoint(self._scheme, host, port)


def _is_loopback(host: str) -> bool | None:
    """Whether a host is this machine. None: it cannot be asked at all, such as `0.0.0.0`."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost") if _NAME.fullmatch(host) else None
    return None if address.is_unspecified or address.is_multicast else address.is_loopback


def _parsed(address: object) -> tuple[str, int]:
    """Return host and port of an address. Raises UsageError."""
    try:
        if isinstance(address, str) and "/" not in address:
            found = parse_endpoint(f"http://{address}")
            if address.endswith(f":{found.port}"):
                return found.host, found.port
    except UsageError:
        pass
    what = f"{address!r} is not the address of a node"
    raise UsageError(what, where="addresses", fix="Write {'node-1:8081': 'localhost:18081'}")
