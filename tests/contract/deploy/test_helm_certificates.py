"""Certificates in the chart: services start with what its Secrets hold, and cert-manager names what peers look for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.services.certificates import Signer, uri
from tests.support.services.guarded import Keys
from tests.support.services.helm_chart import (
    FILLED_IN,
    containers,
    environment,
    manifests,
    of_kind,
    values_of,
)

from understudy_node.settings import ClusterNodeSettings
from understudy_router.settings import RouterSettings
from understudy_shared.auth.access import Exposure
from understudy_shared.fleet.applications_file import FLEET
from understudy_shared.tls.trouble import PeerRole, parse_name

SECRETS = {
    "production": ("understudy-tls", "understudy-node-tls", "understudy-router-tls"),
    "cert-manager": ("understudy-readers-tls", "understudy-node-tls", "understudy-router-tls"),
    "fleet": ("understudy-readers-tls", "understudy-node-tls", "understudy-router-tls"),
}
"""What routers show readers, what nodes show, and what routers show nodes."""


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that Secrets may hold, but for certificates of an application."""
    folder = tmp_path_factory.mktemp("run")
    Keys(folder / "credentials.toml").add("ann", "reader")
    for name in ("cluster-secret", "gossip-key"):
        (folder / name).write_text("c" * 64)
    return folder


@pytest.mark.parametrize("name", ["", *SECRETS], ids=["default", *SECRETS])
@pytest.mark.parametrize("component", ["node", "router"])
def test_a_pod_starts_with_what_its_secrets_hold(
    name: str, component: str, mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = environment(containers(manifests(name))[component])
    ours = Signer(mounted / name / component)
    application = own.get("UNDERSTUDY_APPLICATION_ID", FLEET)
    peer, readers = ours.issue("peer", uri(component, application=application)), ours.issue("readers")
    shown = {"peer.crt": peer.certificate, "peer.key": peer.key, "peer-ca.crt": ours.file}
    shown |= {"readers.crt": readers.certificate, "readers.key": readers.key}
    for variable, value in own.items():
        if variable.startswith("UNDERSTUDY_"):
            there = shown.get(value.removeprefix("/run/understudy/"))
            path = str(there or value.replace("/run/understudy", str(mounted)))
            monkeypatch.setenv(variable, FILLED_IN.get(value, path))
    if application == FLEET and component == "node":
        access = ClusterNodeSettings().access(FLEET, own["UNDERSTUDY_HOST"], is_node=True)
    else:
        access = (ClusterNodeSettings() if component == "node" else RouterSettings()).own_access()
    is_open = values_of(name).get("auth", {}).get("existingSecret") is None
    assert access.exposure is (Exposure.UNGUARDED if is_open else None)
    assert (access.tls is not None and access.tls.server is not None) == (name in SECRETS)


@pytest.mark.parametrize(
    ("values", "named"), [("cert-manager", ("example.com", "flights")), ("fleet", ("cluster.local", FLEET))]
)
def test_cert_manager_issues_what_the_secrets_hold_with_the_names_that_peers_look_for(
    values: str, named: tuple[str, str]
) -> None:
    made = of_kind(manifests(values), "Certificate")
    assert {each["spec"]["secretName"] for each in made} == set(SECRETS[values])
    found: dict[str, Any] = {}
    for each in made:
        assert each["spec"]["issuerRef"]["name"] == "cluster-authority"
        for name in each["spec"].get("uris", []):
            parsed = parse_name(name)
            assert parsed is not None
            assert (parsed.trust_domain, parsed.application) == named
            found[each["spec"]["secretName"]] = parsed.role
    assert found == {"understudy-node-tls": PeerRole.NODE, "understudy-router-tls": PeerRole.ROUTER}
