"""Redis by TLS: who it is, is verified; what is wrong, is said; the files come from settings or from the URL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from tests.support.bus.documents import APPLICATION, bus_of, listening
from tests.support.bus.redis_server import RedisServer, redis_server
from tests.support.bus.tls_server import tls_front, tls_server
from tests.support.services.certificates import Files, Signer
from tests.support.spark.queries import wait_until

from understudy_shared.base.errors import SettingsError
from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import Gossip
from understudy_shared.bus.messages import Announcement, CommitHint
from understudy_shared.bus.redis_bus import RedisBus
from understudy_shared.bus.redis_sync import SyncPublisher

CALL_MS = 5000
"""A handshake takes milliseconds; a loaded machine gets its time."""

KEY = "us:{flights}:key"


class Pki(NamedTuple):
    """Certificates: of two authorities that know nothing of each other."""

    authority: Signer
    stranger: Signer
    server: Files
    client: Files


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    folder = tmp_path_factory.mktemp("pki")
    authority, stranger = Signer(folder / "ours", "ours"), Signer(folder / "stranger", "a-stranger")
    client = authority.issue("client", "spiffe://test/router/1")
    return Pki(authority, stranger, authority.issue("redis"), client)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(params=["proxy", "server"])
def port(request: pytest.FixtureRequest, pki: Pki, server: RedisServer) -> Iterator[int]:
    """A port that speaks TLS, by a proxy and by the server itself."""
    started = tls_front(server, pki.server) if request.param == "proxy" else tls_server(pki.authority, pki.server)
    with started as found:
        yield found


@pytest.fixture(params=["proxy", "server"])
def asking_port(request: pytest.FixtureRequest, pki: Pki, server: RedisServer) -> Iterator[int]:
    """The same, and it asks for a client certificate."""
    if request.param == "proxy":
        started = tls_front(server, pki.server, clients_of=pki.authority)
    else:
        started = tls_server(pki.authority, pki.server, asks_for_one=True)
    with started as found:
        yield found


def url(port: int, authority: Signer | None = None, *, host: str = "127.0.0.1", **options: Any) -> str:
    """A URL that trusts `authority`, and no other."""
    given = {**({} if authority is None else {"ssl_ca_certs": authority.file}), **options}
    return f"rediss://{host}:{port}/0?" + "&".join(f"{name}={quote(str(value))}" for name, value in given.items())


async def refusal(at: str) -> BusError:
    """Why a call fails."""
    async with bus_of(at, call_ms=CALL_MS) as bus:
        with pytest.raises(BusError) as caught:
            await bus.put(KEY, b"1")
    return caught.value


async def test_calls_subscriptions_and_the_pipelines_publisher_go_through_tls(port: int, pki: Pki) -> None:
    at = url(port, pki.authority)
    async with bus_of(at, call_ms=CALL_MS) as bus:
        gossip = Gossip(bus, APPLICATION)
        publisher = SyncPublisher(at, APPLICATION)
        async with listening(gossip.listen()) as ear:
            await gossip.hint(CommitHint(application_id=APPLICATION, version=3))
            assert await ear.next() == CommitHint(application_id=APPLICATION, version=3)

            def is_given() -> bool:  # its deadline is short, and the first call makes the connection
                failures = publisher.failures
                publisher.hint(4)
                return publisher.failures == failures

            wait_until(is_given, what="a hint within the deadline of the publisher")
            assert await ear.next() == CommitHint(application_id=APPLICATION, version=4)
        announced = Announcement(application_id=APPLICATION, query_id="l1", stores=[])
        publisher.announce(announced)
        assert await gossip.announcement() == announced
        publisher.close()


def is_distrusted(publisher: SyncPublisher) -> bool:
    """Whether an announcement is refused for the server's authority."""
    with pytest.raises(BusError) as caught:
        publisher.announce(Announcement(application_id=APPLICATION, query_id="l1", stores=[]))
    return "no authority that this process trusts" in str(caught.value)


async def test_a_server_that_nobody_vouches_for_is_refused_and_the_error_says_what_to_give(port: int, pki: Pki) -> None:
    for at in (url(port), url(port, pki.stranger)):
        error = await refusal(at)
        assert "no authority that this process trusts has signed its certificate" in error.what
        assert "--redis-ca-file" in error.fix
        publisher = SyncPublisher(at, APPLICATION)
        wait_until(partial(is_distrusted, publisher), what="the refusal, not the end of the call's time")
        publisher.close()


async def test_only_who_says_so_goes_on_without_verification(port: int) -> None:
    async with bus_of(url(port, ssl_cert_reqs="none"), call_ms=CALL_MS) as bus:
        await bus.put(KEY, b"1")


async def test_an_expired_certificate_is_refused_by_name(server: RedisServer, pki: Pki) -> None:
    with tls_front(server, pki.authority.issue("expired", lasts=timedelta(hours=1), began=timedelta(days=1))) as port:
        error = await refusal(url(port, pki.authority))
    assert "its certificate has expired" in error.what
    assert "Renew" in error.fix


@pytest.mark.parametrize(("host", "says"), [("127.0.0.1", "of another address"), ("localhost", "of another host name")])
async def test_a_certificate_of_another_name_is_refused_by_name(
    host: str, says: str, server: RedisServer, pki: Pki
) -> None:
    with tls_front(server, pki.authority.issue(f"other-{len(host)}", host="redis.example")) as port:
        error = await refusal(url(port, pki.authority, host=host))
    assert f"its certificate is {says}" in error.what
    assert "subjectAltName" in error.fix


async def test_plain_text_to_a_port_for_tls_fails_and_the_error_says_to_write_rediss(port: int) -> None:
    error = await refusal(f"redis://127.0.0.1:{port}/0")
    assert "write rediss://" in error.fix


async def test_tls_to_a_port_for_plain_text_fails_and_the_error_asks_for_the_port(pki: Pki) -> None:
    with redis_server(port=0) as plain:
        assert plain.port is not None
        async with bus_of(url(plain.port, pki.authority), call_ms=CALL_MS) as bus:
            bus._timeout_ms = 300  # a server may wait for more of what it takes for a command
            with pytest.raises(BusError) as caught:
                await bus.put(KEY, b"1")
    assert "TLS at this port" in str(caught.value) or "TLS handshake" in str(caught.value)


async def test_a_server_that_asks_for_a_client_certificate_gets_that_of_the_url(asking_port: int, pki: Pki) -> None:
    error = await refusal(url(asking_port, pki.authority))
    assert "it asks for a client certificate" in str(error)  # or the connection is reset before that is read
    assert "--redis-cert-file" in error.fix
    known: dict[str, Any] = {"ssl_certfile": pki.client.certificate, "ssl_keyfile": pki.client.key}
    async with bus_of(url(asking_port, pki.authority, **known), call_ms=CALL_MS) as bus:
        await bus.put(KEY, b"1")
    forged = pki.stranger.issue(f"forged-{asking_port}")
    unknown: dict[str, Any] = {"ssl_certfile": forged.certificate, "ssl_keyfile": forged.key}
    assert "client certificate" in str(await refusal(url(asking_port, pki.authority, **unknown)))


async def test_a_renewed_file_counts_for_the_next_connection_without_a_restart(
    server: RedisServer, pki: Pki, tmp_path: Path
) -> None:
    trusted = tmp_path / "ca.pem"
    shutil.copy(pki.stranger.file, trusted)
    with tls_front(server, pki.server) as port:
        async with bus_of(url(port, ssl_ca_certs=trusted), call_ms=CALL_MS) as bus:
            with pytest.raises(BusError, match="no authority that this process trusts"):
                await bus.put(KEY, b"1")
            shutil.copy(pki.authority.file, trusted)
            await bus.put(KEY, b"1")


def test_files_that_cannot_be_used_are_refused_at_the_start_by_name(pki: Pki, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate\n")
    other = pki.stranger.issue("other-key")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"ssl_ca_certs": tmp_path / "nowhere.pem"}, "the CA file for Redis cannot be read: No such file"),
        ({"ssl_certfile": tmp_path / "nowhere.pem"}, "the client certificate for Redis cannot be read"),
        ({"ssl_ca_certs": garbage}, "the files for TLS to Redis cannot be used"),
        ({"ssl_certfile": pki.client.certificate, "ssl_keyfile": other.key}, "the files for TLS to Redis cannot be"),
    )
    for options, says in cases:
        for make in (RedisBus, lambda at: SyncPublisher(at, APPLICATION)):
            with pytest.raises(SettingsError, match=says):
                make(url(1, **options))
