"""The opener of URLs for blocking calls: of commands to services, and of services to issuers of tokens.

It is urllib, whose import takes less time than that of any other client. Calls that must not block the loop are those
of `cluster/node_calls.py`.
"""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from urllib.request import BaseHandler, HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler


def url_opener(tls: ssl.SSLContext | None, *, uses_proxies: bool) -> OpenerDirector:
    """Make an opener for HTTP and HTTPS. It follows no redirects, and a reply of any status is a reply.

    Leave proxies out for loopback: one that is set for the outside world cannot reach this machine's.
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
    """Whether only this machine reaches the address. A name that is not localhost may mean any."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
