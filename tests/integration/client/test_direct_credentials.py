"""With direct routing a credential goes to addresses that a router's own metadata names, and nowhere else (Q49)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from tests.support.clients.asking import asking
from tests.support.clients.direct_world import metadata, node_answer, reply_of
from tests.support.services.bad_servers import BadServer, bad_server, sending
from tests.support.services.canned_server import PROBLEM, Canned, canned_server
from tests.support.services.certificates import Signer

from understudy.client.core import direct as refreshing

KEY = "usk_secret"
ANSWER = Canned(orjson.dumps(node_answer("word-1")))


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(refreshing, "JITTER_S", 0.0)
    return str(request.param)


@pytest.fixture
def listener() -> Iterator[BadServer]:
    """A stranger that keeps what it gets."""
    with bad_server(sending(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")) as running:
        yield running


def naming(url: str, host: str = "127.0.0.1", **members: Any) -> bytes:
    """Metadata by which every partition is at this address."""
    known: dict[str, Any] = orjson.loads(reply_of(metadata()).body)
    for each in known["partitions"]:
        each["active_host"] = {"host": host, "port": urlsplit(url).port}
    return orjson.dumps({**known, **members})


def not_owner(url: str) -> Canned:
    """A node's refusal that names another host."""
    host = {"host": "127.0.0.1", "port": urlsplit(url).port}
    document = {"type": "not-owner", "title": "t", "status": 421, "detail": url, "fix": url, "candidates": [host]}
    return Canned(orjson.dumps(document), 421, PROBLEM)


FOREIGN: dict[str, Callable[[str], list[Canned]]] = {
    "a page": lambda url: [Canned(naming(url), content_type="text/html"), ANSWER],
    "an error": lambda url: [Canned(naming(url), 503), ANSWER],
    "a problem": lambda url: [Canned(naming(url), 503, PROBLEM), ANSWER],
    "metadata of another store": lambda url: [Canned(naming(url, store="other")), ANSWER],
    "metadata of another release": lambda url: [Canned(naming(url, encoding={"layout": "x"})), ANSWER],
    "an address that hides another": lambda url: [Canned(naming(url, f"127.0.0.1:{urlsplit(url).port}/")), ANSWER],
    "a host that is excluded": lambda url: [
        Canned(naming(url, excluded_hosts=[{"host": "127.0.0.1", "port": urlsplit(url).port, "reason": "forked"}])),
        ANSWER,
    ],
    "an answer that names a host": lambda url: [
        Canned(orjson.dumps(node_answer("word-1", served_by={"host": "127.0.0.1", "port": urlsplit(url).port})))
    ],
}


@pytest.mark.parametrize("replies", FOREIGN.values(), ids=FOREIGN.keys())
def test_an_address_that_authorised_metadata_does_not_name_gets_nothing(
    kind: str, listener: BadServer, replies: Callable[[str], list[Canned]]
) -> None:
    with (
        canned_server(replies(listener.url)) as router,
        asking(kind, router.url, routing="direct", api_key=KEY) as client,
    ):
        assert client.ask(lambda each: each.store("words").get("word-1")).found
        assert client.ask(lambda each: each.store("words").get("word-1")).found
        assert set(router.shown) == {f"Bearer {KEY}"}
    assert (listener.requests, listener.connections) == ([], 0)


def test_no_reply_leads_to_another_host(kind: str, listener: BadServer) -> None:
    for refusal in (not_owner(listener.url), Canned(b"", 302)):
        with canned_server([refusal]) as node, canned_server([Canned(naming(node.url)), ANSWER]) as router:
            with asking(kind, router.url, routing="direct", api_key=KEY) as client:
                assert client.ask(lambda each: each.store("words").get("word-1")).found
                assert client.counts.direct == 0
            assert len(node.requests) == 1, "the node that the router names was asked"
    assert listener.connections == 0


def test_an_address_that_the_mapping_does_not_name_gets_nothing(kind: str, listener: BadServer) -> None:
    with canned_server([Canned(naming(listener.url)), ANSWER]) as router:
        options: dict[str, Any] = {"routing": "direct", "api_key": KEY, "addresses": {"node-1:8081": "localhost:18081"}}
        with asking(kind, router.url, **options) as client:
            assert client.ask(lambda each: each.store("words").get("word-1")).found
    assert listener.connections == 0


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("ours"))


def test_nodes_of_a_router_by_tls_are_never_asked_in_plain(kind: str, listener: BadServer, signer: Signer) -> None:
    replies = [Canned(naming(listener.url)), ANSWER]
    with (
        canned_server(replies, signer.server_context()) as router,
        asking(kind, router.url, routing="direct", api_key=KEY, ca_file=signer.file) as client,
    ):
        assert client.ask(lambda each: each.store("words").get("word-1")).found
    assert not any(KEY.encode() in each or b"GET" in each for each in listener.requests)


@pytest.mark.parametrize("advertised", ["localhost", "node-1"])
def test_the_certificate_of_a_node_has_the_name_that_it_advertises_wherever_it_is_reached(
    kind: str, signer: Signer, tmp_path: Path, advertised: str
) -> None:
    with canned_server([ANSWER], signer.server_context()) as node:
        port = urlsplit(node.url).port
        replies = [Canned(naming(node.url, advertised)), ANSWER]
        with canned_server(replies, signer.server_context()) as router:
            options: dict[str, Any] = {
                "ca_file": signer.file,
                "addresses": {f"{advertised}:{port}": f"127.0.0.1:{port}"},
            }
            with asking(kind, router.url, routing="direct", api_key=KEY, **options) as client:
                assert client.ask(lambda each: each.store("words").get("word-1")).found
                counts = client.counts
        is_named = advertised == "localhost"  # which the certificate has, as it has 127.0.0.1
        assert (counts.direct, node.shown) == ((1, [f"Bearer {KEY}"]) if is_named else (0, []))
