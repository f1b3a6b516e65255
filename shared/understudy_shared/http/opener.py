"""The opener of URLs for blocking calls: of commands to services, and of services to issuers of tokens.

It uses urllib, because its import is faster than that of any other client. For calls that must not block the loop, use
`cluster/node_calls.py`.
"""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from urllib.request import BaseHandler, HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler


def url_opener(tls: ssl.SSLContext | None, *, uses_proxies: bool) -> OpenerDirector:
    """Make an opener for HTTP and HTTPS. It follows no redirects, and raises no error for a status of 400 and above.

    Do not use proxies for loopback: a proxy to the outside world cannot reach ports of this machine.
    """
    opener = OpenerDirector()
    handlers: list[BaseHandler] = [
        HTTPHandler(),
        HTTPSHandler(context=tls),
        *([ProxyHandler()] if uses_proxies else []),
    ]
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine. A name other than localhost may mean any address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
