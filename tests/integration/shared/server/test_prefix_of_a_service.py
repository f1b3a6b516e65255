"""A service behind a proxy that passes its prefix on: each way into it takes the prefix off, once."""

from __future__ import annotations

from tests.support.services.echo_service import DIRECT_POST, get, serving
from tests.support.services.raw_http import RawClient

PREFIX = "/understudy"


def test_the_prefix_itself_is_the_root_and_what_only_begins_like_it_is_another_path() -> None:
    with serving(root_path=PREFIX) as service, RawClient(service.port) as client:
        for asked, path in ((PREFIX, "/"), (f"{PREFIX}?a=b", "/"), (f"{PREFIX}x", f"{PREFIX}x")):
            client.send(get(asked))
            assert client.reply()[2] == f"GET {path} 0".encode()


def test_calls_between_services_are_answered_without_the_prefix_alone() -> None:
    body = b"content-length: 3\r\n\r\nabc"
    with serving(root_path=PREFIX) as service, RawClient(service.port) as client:
        for path in (f"{PREFIX}{DIRECT_POST}", DIRECT_POST):
            client.send(f"POST {path} HTTP/1.1\r\nhost: x\r\n".encode() + body)
            assert client.reply()[2] == f"POST {path} 3".encode()
        assert service.app.direct == [DIRECT_POST]
