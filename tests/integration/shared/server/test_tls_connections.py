"""The protocol behind TLS, over real sockets: what holds of connections in plain holds of these."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.services.certificates import Signer
from tests.support.services.echo_service import (
    DIRECT,
    DIRECT_POST,
    LARGE_BYTES,
    Serving,
    get,
    serving,
    wait_for_peers,
    wait_until,
)
from tests.support.services.raw_http import RawClient

from understudy_shared.server.connection_limits import ConnectionLimits, ConnectionRefusal
from understudy_shared.tls.certificates import tls_plan
from understudy_shared.tls.service_tls import ServiceTls
from understudy_shared.tls.trouble import PeerRole, TlsReason, TlsSide


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("tls"))


def tls_of(signer: Signer) -> ServiceTls:
    plan = tls_plan("echo", PeerRole.ROUTER, server=signer.issue("server"), peer=(None, None), peer_ca=None)
    assert plan is not None
    return ServiceTls(plan)


@pytest.fixture
def tls(signer: Signer) -> ServiceTls:
    return tls_of(signer)


@pytest.fixture
def service(tls: ServiceTls) -> Iterator[Serving]:
    with serving(tls=tls) as running:
        yield running


def test_requests_of_both_ways_in_are_answered_in_order_however_they_are_cut(service: Serving, signer: Signer) -> None:
    post = f"POST {DIRECT_POST} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n123456789".encode()
    asked = [get(f"{DIRECT}/1"), get("/livez"), post, get(f"{DIRECT}/2"), get(f"{DIRECT}/large"), get("/large")]
    with RawClient(service.port, tls=signer.client()) as client:
        for _ in range(3):
            client.send(b"".join(asked))
            found = [client.reply()[2] for _ in asked]
            assert [body.split()[1].decode() for body in found] == [
                f"{DIRECT}/1", "/livez", DIRECT_POST, f"{DIRECT}/2", f"{DIRECT}/large", "/large",
            ]  # fmt: skip
            assert [len(found[4]), len(found[5])] == [LARGE_BYTES, LARGE_BYTES]
        for byte in get(f"{DIRECT}/bytewise"):
            client.send(bytes([byte]))
        assert client.reply()[0] == 200
    wait_for_peers(service, 0)


def test_old_and_new_tls_are_spoken_and_what_is_older_is_not(service: Serving, signer: Signer, tls: ServiceTls) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = signer.client()
        context.minimum_version = context.maximum_version = version
        with RawClient(service.port, tls=context) as client:
            client.send(get("/livez"))
            assert client.reply()[0] == 200
    context = signer.client()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError, match=r"SSL|TLS|ssl|reset"):
        RawClient(service.port, tls=context)
    wait_until(lambda: tls.refusals[TlsSide.ACCEPT, TlsReason.VERSION] == 1, what="the refusal")


def test_whoever_never_ends_his_handshake_is_closed_like_one_who_never_sends_his_headers(tls: ServiceTls) -> None:
    limits = ConnectionLimits(header_timeout_ms=500, first_request_timeout_ms=500)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"  # the beginning of a greeting
    with serving(limits, tls) as service:
        for sent, refusal in ((b"", ConnectionRefusal.SILENT), (hello, ConnectionRefusal.HEADER_TIME)):
            with RawClient(service.port) as client:
                client.send(sent)
                assert client.is_closed()
            wait_until(lambda refusal=refusal: service.refused(refusal) == 1, what=f"{refusal}")  # type: ignore[misc]
        wait_for_peers(service, 0)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 600, b"\x16\x03\x01\x00\x05hello", b"\x80" * 40])
def test_bytes_that_are_no_handshake_are_refused_and_end_nothing_else(
    service: Serving, signer: Signer, tls: ServiceTls, sent: bytes
) -> None:
    with RawClient(service.port) as client:
        with suppress(OSError):
            client.send(sent)
            client.socket.shutdown(socket.SHUT_WR)
        assert client.is_closed()
    wait_until(lambda: sum(tls.refusals.values()) == 1, what="the refusal")
    with RawClient(service.port, tls=signer.client()) as client:
        client.send(get("/livez"))
        assert client.reply()[0] == 200
    wait_for_peers(service, 0)


def test_a_file_that_is_exchanged_counts_for_new_connections_and_open_ones_stay(
    service: Serving, signer: Signer, tls: ServiceTls, tmp_path: Path
) -> None:
    other = Signer(tmp_path)
    with RawClient(service.port, tls=signer.client()) as client:
        client.send(get("/livez"))
        assert client.reply()[0] == 200
        fresh = other.issue("fresh")
        for name in ("certificate", "key"):
            getattr(tls.plan.server, name).write_bytes(getattr(fresh, name).read_bytes())
        tls.look()
        with RawClient(service.port, tls=other.client()) as stranger:
            stranger.send(get("/livez"))
            assert stranger.reply()[0] == 200
        client.send(get("/livez"))
        assert client.reply()[0] == 200
