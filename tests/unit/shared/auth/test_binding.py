"""A service that strangers reach asks for credentials, or was told that it need not; then it shouts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.services.guarded import Keys

from understudy_node.cluster.serve import access_to
from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_node.settings import NodeSettings
from understudy_router.serve import access_to as access_to_router
from understudy_router.settings import RouterSettings
from understudy_shared.auth.access import Access
from understudy_shared.auth.audit import AuditLog
from understudy_shared.auth.binding import is_loopback, require_guarded
from understudy_shared.auth.credentials import parse_credentials
from understudy_shared.errors import SettingsError
from understudy_shared.watched_file import WatchedFile

BEYOND = ("0.0.0.0", "::", "", "10.0.0.1", "example.org", "::ffff:10.0.0.1", "127.0.0.1.example.org")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "node.localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    assert is_loopback(host)
    assert require_guarded(host, is_guarded=False, insecure_bind=False) is False


@pytest.mark.parametrize("host", BEYOND)
def test_every_other_address_is_refused_without_credentials_with_what_to_do(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        require_guarded(host, is_guarded=False, insecure_bind=False)
    assert "--credentials-file" in caught.value.fix
    assert "--insecure-bind" in caught.value.fix
    assert require_guarded(host, is_guarded=True, insecure_bind=False) is False
    assert require_guarded(host, is_guarded=True, insecure_bind=True) is False
    assert require_guarded(host, is_guarded=False, insecure_bind=True) is True


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
    return access_to(ClusterNodeSettings(checkpoint="/nowhere", redis="redis://nowhere", **settings))


def router_access(**settings: Any) -> Access:
    return access_to_router(RouterSettings(redis="redis://nowhere", application_id="flights", **settings))


@pytest.mark.parametrize("access_of", [serve_access, node_access, router_access])
def test_each_service_refuses_to_be_reached_by_strangers_unless_it_is_told(access_of: Any) -> None:
    assert not access_of().is_on
    assert not access_of().is_exposed
    with pytest.raises(SettingsError, match="nobody is asked"):
        access_of(host="0.0.0.0")
    assert access_of(host="0.0.0.0", insecure_bind=True).is_exposed


@pytest.mark.parametrize("access_of", [serve_access, node_access, router_access])
def test_credentials_guard_every_service(access_of: Any, credentials: Path, secret: Path) -> None:
    access = access_of(host="0.0.0.0", credentials_file=credentials, cluster_secret_file=secret, insecure_bind=True)
    assert (access.is_on, access.is_exposed) == (True, False)


def test_the_secret_of_the_cluster_guards_a_node_but_no_router(secret: Path) -> None:
    assert node_access(host="0.0.0.0", cluster_secret_file=secret).is_on
    with pytest.raises(SettingsError, match="nobody is asked"):
        router_access(host="0.0.0.0", cluster_secret_file=secret)


def test_a_node_that_would_refuse_its_routers_does_not_start(credentials: Path) -> None:
    with pytest.raises(SettingsError, match="none for the routers"):
        node_access(credentials_file=credentials)


def test_a_file_that_is_not_there_or_broken_is_refused_at_the_start(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("keys = 1")
    for path in (tmp_path / "nowhere.toml", broken):
        with pytest.raises(SettingsError, match=str(path)):
            serve_access(credentials_file=path)
        with pytest.raises(SettingsError, match=str(path)):
            router_access(cluster_secret_file=path)


def test_a_service_that_strangers_reach_says_so_in_its_log_and_metrics(caplog: pytest.LogCaptureFixture) -> None:
    async def start(access: Access) -> None:
        access.start()
        access.stop()

    for access, wanted in ((Access(), 0.0), (Access(is_exposed=True), 1.0)):
        caplog.clear()
        asyncio.run(start(access))
        assert len([record for record in caplog.records if "INSECURE" in record.message]) == wanted
        gauges = [family for family in access.metrics() if family.type == "gauge" and family.samples]
        values = {family.name: family.samples[0].value for family in gauges}
        assert values == {"understudy_auth_enabled": 0.0, "understudy_insecure_bind": wanted}


def test_files_are_looked_at_by_themselves_while_a_service_runs(
    credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy_shared.auth.known.LOOK_EVERY_S", 0.01)

    class Watching(AuditLog):
        """Says that keys have gone."""

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
