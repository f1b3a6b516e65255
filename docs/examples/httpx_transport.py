"""The Python client over httpx, for a program that has one configured: its proxy, its TLS, its instrumentation.

    with httpx.Client(proxy="http://proxy:3128") as own, Client(url, transport=HttpxTransport(own)) as client: ...

A transport carries a request and brings its reply or a failure; what that means is the client's business.
"""

from __future__ import annotations

from time import monotonic

import httpx

from understudy.client.core.exchange import Failure, FailureKind, Opened, Reply, Send
from understudy.client.transports.base import LATE


class HttpxTransport:
    """A transport by an `httpx.Client`, which its owner closes."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def exchange(self, send: Send) -> Reply | Failure:
        """Send a request and return its whole reply, or the reason without one."""
        try:
            found = self._client.send(self._request(send, max(0.001, send.deadline_s - monotonic())))
        except httpx.TimeoutException as error:
            return Failure(FailureKind.NOT_SENT, str(error)) if isinstance(error, httpx.ConnectTimeout) else LATE
        except httpx.HTTPError as error:
            return Failure(
                FailureKind.NOT_SENT if isinstance(error, httpx.ConnectError) else FailureKind.CUT, str(error)
            )
        kind, advice, tag = (found.headers.get(name, "") for name in ("content-type", "retry-after", "etag"))
        return Reply(found.status_code, kind, found.content, advice, tag)

    def open(self, send: Send) -> Opened | Reply | Failure:
        """Return a failure: watches need a `Stream`, which `understudy.client.transports.base` describes."""
        return Failure(FailureKind.NOT_SENT, "this transport carries no streams")

    def close(self) -> None:
        """Leave the client open: it is its owner's."""

    def _request(self, send: Send, timeout_s: float) -> httpx.Request:
        url, headers = send.endpoint.url + send.request.target, dict(send.headers)
        return self._client.build_request(
            send.request.method, url, content=send.request.body, headers=headers, timeout=timeout_s
        )
