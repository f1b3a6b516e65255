"""A service behind a proxy that passes its prefix on: each way into it takes the prefix off, once."""

from __future__ import annotations

import pytest
from tests.support.services.echo_service import DIRECT, DIRECT_POST, get, serving
from tests.support.services.raw_http import RawClient

PREFIX = "/understudy"


@pytest.mark.parametrize("prefix", ["", PREFIX])
@pytest.mark.parametrize("path", [f"{DIRECT}/a%2Fb", f"{DIRECT}", "/anything", "/"])
def test_a_request_is_answered_with_the_prefix_and_without(prefix: str, path: str) -> None:
    with serving(root_path=PREFIX) as service, RawClient(service.port) as client:
        for _ in range(3):  # the head of a lookup is remembered from the second one on
            client.send(get(f"{prefix}{path}"))
            assert client.reply()[2] == f"GET {path.replace('%2F', '/') if path == '/anything' else path} 0".encode()
        assert service.app.direct == ([path] * 3 if path.startswith(DIRECT) else [])


def test_calls_between_services_are_answered_without_the_prefix_alone() -> None:
    body = b"content-length: 3\r\n\r\nabc"
    with serving(root_path=PREFIX) as service, RawClient(service.port) as client:
        for path in (f"{PREFIX}{DIRECT_POST}", DIRECT_POST):
            client.send(f"POST {path} HTTP/1.1\r\nhost: x\r\n".encode() + body)
            assert client.reply()[2] == f"POST {path} 3".encode()
        assert service.app.direct == [DIRECT_POST]
