"""TLS of the Python client: whom it trusts, what it shows, and files that are replaced while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from tests.support.clients.asking import asking
from tests.support.clients.steps import found
from tests.support.services.canned_server import Canned, CannedServer, canned_server
from tests.support.services.certificates import Signer

from understudy import Client, UnreachableError

ANSWER = Canned(orjson.dumps(found("a")))


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(tmp_path_factory.mktemp("ours"))


@pytest.fixture
def guarded(signer: Signer) -> Iterator[CannedServer]:
    """A server that answers only clients with a certificate of its authority."""
    with canned_server([ANSWER], signer.server_context(asks=True)) as running:
        yield running


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_trusted_server_is_asked_with_the_clients_own_certificate(
    kind: str, guarded: CannedServer, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = signer.issue("me")
    shown = {"cert_file": own.certificate, "key_file": own.key}
    with asking(kind, guarded.url, ca_file=signer.file, **shown) as client:
        assert client.ask(lambda each: each.store("words").get("a")).found
    with asking(kind, guarded.url, **shown) as client, pytest.raises(UnreachableError, match=r"by TLS: .*authority"):
        client.ask(lambda each: each.store("words").get("a"))
    with asking(kind, guarded.url, ca_file=signer.file) as client, pytest.raises(UnreachableError, match="by TLS"):
        client.ask(lambda each: each.store("words").get("a"))
    assert len(guarded.requests) == 1
    for name, path in {"CA": signer.file, "CERT": own.certificate, "KEY": own.key}.items():
        monkeypatch.setenv(f"UNDERSTUDY_{name}_FILE", str(path))
    with asking(kind, guarded.url) as client:
        assert client.ask(lambda each: each.store("words").get("a")).found


def test_files_that_are_replaced_count_for_new_connections(
    guarded: CannedServer, signer: Signer, tmp_path: Path
) -> None:
    own, trusted = signer.issue("me"), tmp_path / "ca.pem"
    trusted.write_bytes(Signer(tmp_path / "stranger", "stranger").file.read_bytes())
    with Client(guarded.url, ca_file=trusted, cert_file=own.certificate, key_file=own.key, retries=0) as client:
        with pytest.raises(UnreachableError):
            client.store("words").get("a")
        trusted.with_suffix(".new").write_bytes(signer.file.read_bytes())
        trusted.with_suffix(".new").replace(trusted)
        assert client.store("words").get("a").found
        trusted.unlink()
        assert client.store("words").get("a").found, "the last good files stay in use"
