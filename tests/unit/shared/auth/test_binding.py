"""A service that strangers reach asks for credentials, by TLS, or was told that it need not; then it shouts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.services.certificates import Signer, uri
from tests.support.services.guarded import Keys

from understudy_node.settings import ClusterNodeSettings, NodeSettings
from understudy_router.settings import RouterSettings
from understudy_shared.auth.access import Access, Exposure, Guard, exposure_of
from understudy_shared.auth.audit import AuditLog
from understudy_shared.auth.credentials import parse_credentials
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.files import WatchedFile

OPEN = Guard(asks=False, takes_credentials=False, is_encrypted=False)
PLAIN = Guard(asks=True, takes_credentials=True, is_encrypted=False)
SAFE = Guard(asks=True, takes_credentials=True, is_encrypted=True)
BEYOND = ("0.0.0.0", "::", "", "10.0.0.1", "example.org", "::ffff:10.0.0.1", "127.0.0.1.example.org")


@pytest.mark.parametrize("host", BEYOND)
def test_every_other_address_is_refused_without_credentials_with_what_to_do(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        exposure_of(host, OPEN, insecure_bind=False)
    assert "--credentials-file" in caught.value.fix
    assert "--insecure-bind" in caught.value.fix
    assert exposure_of(host, OPEN, insecure_bind=True) is Exposure.UNGUARDED


@pytest.mark.parametrize("host", BEYOND)
def test_every_other_address_is_refused_to_credentials_without_tls_with_what_to_do(host: str) -> None:
    with pytest.raises(SettingsError, match="without TLS") as caught:
        exposure_of(host, PLAIN, insecure_bind=False)
    assert caught.value.where == "host"
    assert (host or "every interface") in caught.value.what
    for option in ("--tls-cert-file", "--external-tls-termination", "--insecure-bind"):
        assert option in caught.value.fix
    assert exposure_of(host, PLAIN, insecure_bind=True) is Exposure.IN_PLAIN
    assert exposure_of(host, SAFE, insecure_bind=False) is None
    assert exposure_of(host, SAFE, insecure_bind=True) is None


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("s" * 32)
    return path


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    keys = Keys(tmp_path / "credentials.toml")
    keys.add("ann", "reader")
    return keys.path


def serve_access(**settings: Any) -> Access:
    parsed = NodeSettings(checkpoint="/nowhere", **settings)
    return parsed.access(parsed.application, parsed.host, is_node=True)


def node_access(**settings: Any) -> Access:
    return ClusterNodeSettings(checkpoint="/nowhere", redis="redis://nowhere", **settings).own_access()


def router_access(**settings: Any) -> Access:
    return RouterSettings(redis="redis://nowhere", application_id="flights", **settings).own_access()


@pytest.mark.parametrize("access_of", [serve_access, node_access, router_access])
def test_each_service_refuses_to_be_reached_by_strangers_unless_it_is_told(access_of: Any) -> None:
    assert (access_of().is_on, access_of().exposure) == (False, None)
    assert access_of(host="0.0.0.0", insecure_bind=True).exposure is Exposure.UNGUARDED
    for told in ({}, {"external_tls_termination": True}):
        with pytest.raises(SettingsError, match="it asks for no credential"):
            access_of(host="0.0.0.0", **told)


@pytest.mark.parametrize("access_of", [serve_access, node_access, router_access])
def test_credentials_that_would_come_in_plain_are_refused_unless_a_setting_says_why_not(
    access_of: Any, credentials: Path, secret: Path, tmp_path: Path
) -> None:
    files = {"credentials_file": credentials, "cluster_secret_file": secret}
    assert access_of(**files).exposure is None
    with pytest.raises(SettingsError, match="without TLS"):
        access_of(host="0.0.0.0", **files)
    assert access_of(host="0.0.0.0", insecure_bind=True, **files).exposure is Exposure.IN_PLAIN
    behind = access_of(host="0.0.0.0", external_tls_termination=True, **files)
    assert (behind.is_on, behind.exposure) == (True, None)
    ours = Signer(tmp_path / "authority")
    pair = ours.issue("service", uri("node", application="nowhere"))
    peers = {"peer_ca_file": ours.file} if access_of is node_access else {}
    encrypted = access_of(host="0.0.0.0", tls_cert_file=pair.certificate, tls_key_file=pair.key, **peers, **files)
    assert (encrypted.is_on, encrypted.exposure) == (True, None)


def test_the_secret_of_the_cluster_guards_a_node_but_no_router(secret: Path) -> None:
    assert node_access(host="0.0.0.0", cluster_secret_file=secret, external_tls_termination=True).is_on
    with pytest.raises(SettingsError, match="without TLS"):
        node_access(host="0.0.0.0", cluster_secret_file=secret)
    with pytest.raises(SettingsError, match="it asks for no credential"):
        router_access(host="0.0.0.0", cluster_secret_file=secret)


def test_a_service_that_strangers_reach_says_so_in_its_log_and_metrics(caplog: pytest.LogCaptureFixture) -> None:
    async def start(access: Access) -> None:
        access.start()
        access.stop()

    for exposure, wanted in ((None, 0.0), *((each, 1.0) for each in Exposure)):
        access = Access(exposure=exposure)
        caplog.clear()
        asyncio.run(start(access))
        shouted = [record.message for record in caplog.records if "INSECURE" in record.message]
        assert len(shouted) == wanted
        assert all(str(exposure) in each for each in shouted)
        gauges = [family for family in access.metrics() if family.type == "gauge" and family.samples]
        values = {family.name: family.samples[0].value for family in gauges}
        assert values == {"understudy_insecure_bind": wanted}


def test_files_are_looked_at_by_themselves_while_a_service_runs(
    credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy_shared.auth.authentication.LOOK_EVERY_S", 0.01)

    class Watching(AuditLog):
        def keys_changed(self, added: list[str], removed: list[str]) -> None:
            super().keys_changed(added, removed)
            emptied.set()

    async def run() -> None:
        access = Access(credentials=WatchedFile(credentials, parse_credentials), audit=Watching())
        access.start()
        await asyncio.to_thread(credentials.write_text, "")
        await asyncio.wait_for(emptied.wait(), 20)
        access.stop()
        assert access._known._next is None

    emptied = asyncio.Event()
    asyncio.run(run())
