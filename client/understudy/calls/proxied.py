"""A transport through the proxy that the environment sets, for commands: the default one uses no proxy."""

from __future__ import annotations

import ssl
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from time import monotonic
from urllib.error import URLError
from urllib.request import Request, getproxies, proxy_bypass

from understudy.client.core.exchange import Endpoint, Failure, FailureKind, Opened, Reply, Send
from understudy.client.credentials import failure_text
from understudy.client.transports.base import LATE, MAX_REPLY_BYTES
from understudy_shared.http.opener import url_opener

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_READ_BYTES = 256 * 1024
_STREAM_READ_S = 60.0
"""Time limit for one read of a stream: it is set once, at the beginning."""


def is_proxied(endpoint: Endpoint) -> bool:
    """Whether a server is asked through a proxy. A proxy for the outside world cannot reach servers on this machine."""
    return endpoint.host not in _LOOPBACK and endpoint.scheme in getproxies() and not proxy_bypass(endpoint.host)


class ProxiedTransport:
    """A transport by urllib, each request with a connection of its own."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._opener = url_opener(context, uses_proxies=True)

    def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its whole reply, or the reason without one, by its deadline."""
        response = self._begun(send, 0.0)
        return response if isinstance(response, Failure) else _whole(response, send.deadline_s)

    def open(self, send: Send) -> Opened | Reply | Failure:
        """Send a request and return its reply: with status 200 its head, and a `Stream` of the rest."""
        response = self._begun(send, _STREAM_READ_S)
        if isinstance(response, Failure):
            return response
        if response.status != 200:
            return _whole(response, send.deadline_s)
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Opened(headers.get("content-type", ""), headers, _ProxiedStream(response))

    def close(self) -> None:
        """Close nothing: no connection is kept."""

    def _begun(self, send: Send, at_least_s: float) -> HTTPResponse | Failure:
        asked = send.request
        kind = () if asked.body is None else (("content-type", "application/json"),)
        headers = dict((*send.headers, *kind))
        url = send.endpoint.url + asked.target
        request = Request(url, asked.body, headers, method=asked.method)  # noqa: S310  # an endpoint is http or https
        try:
            opened: HTTPResponse = self._opener.open(
                request, timeout=max(at_least_s, 0.001, send.deadline_s - monotonic())
            )
        except (OSError, HTTPException, ValueError) as error:
            return _failure(error, FailureKind.NOT_SENT)
        return opened


class _ProxiedStream:
    """The body of a reply as it comes."""

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response

    def receive(self, deadline_s: float) -> bytes | Failure:
        """See `Stream`."""
        if monotonic() > deadline_s:
            return LATE
        try:
            return self._response.read1(_READ_BYTES)
        except (OSError, HTTPException, ValueError) as error:
            return _failure(error, FailureKind.CUT)

    def close(self) -> None:
        """See `Stream`."""
        with suppress(OSError):
            self._response.close()


def _whole(response: HTTPResponse, deadline_s: float) -> Reply | Failure:
    parts: list[bytes] = []
    with response:
        stream = _ProxiedStream(response)
        while part := stream.receive(deadline_s):
            if isinstance(part, Failure):
                return part
            parts.append(part)
            if sum(map(len, parts)) > MAX_REPLY_BYTES:
                return Failure(FailureKind.BAD_REPLY, f"a body above {MAX_REPLY_BYTES} bytes")
    kind, advice = response.headers.get("content-type", ""), response.headers.get("retry-after", "")
    return Reply(response.status, kind, b"".join(parts), advice)


def _failure(error: Exception, kind: FailureKind) -> Failure:
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    return LATE if isinstance(cause, TimeoutError) else Failure(kind, failure_text(cause))
