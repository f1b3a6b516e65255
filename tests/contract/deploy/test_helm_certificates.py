"""Certificates in the chart: who has which, and that probes, scrapes and hooks speak as the ports do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator  # type: ignore[import-untyped]
from tests.support.services.certificates import Signer, uri
from tests.support.services.guarded import Keys
from tests.support.services.helm_chart import (
    FILLED_IN,
    SETS,
    Manifest,
    containers,
    environment,
    manifests,
    of_kind,
    pods,
    values_of,
)
from tools.chart import README

from understudy_node.cluster.serve import access_to as node_access
from understudy_node.cluster.settings import ClusterNodeSettings
from understudy_node.fleet.settings import NodeFleetSettings
from understudy_router.serve import access_to as router_access
from understudy_router.settings import RouterSettings
from understudy_shared.auth.binding import Exposure
from understudy_shared.fleet.choosing import FLEET
from understudy_shared.tls.names import PeerRole, parse_name

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
SECRETS = {
    "production": ("understudy-tls", "understudy-node-tls", "understudy-router-tls"),
    "cert-manager": ("understudy-readers-tls", "understudy-node-tls", "understudy-router-tls"),
    "fleet": ("understudy-readers-tls", "understudy-node-tls", "understudy-router-tls"),
}
"""What routers show readers, what nodes show, and what routers show nodes."""
with_certificates = pytest.mark.parametrize("name", SECRETS)
CERTIFICATE = {
    # The part of cert-manager's definition (cert-manager.io/v1) that the chart uses.
    "type": "object",
    "additionalProperties": False,
    "required": ["secretName", "issuerRef"],
    "properties": {
        "secretName": {"type": "string"},
        "issuerRef": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {
                "group": {"const": "cert-manager.io"},
                "kind": {"enum": ["Issuer", "ClusterIssuer"]},
                "name": {"type": "string"},
            },
        },
        "duration": {"type": "string"},
        "renewBefore": {"type": "string"},
        "privateKey": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "algorithm": {"enum": ["RSA", "ECDSA", "Ed25519"]},
                "size": {"type": "integer"},
                "rotationPolicy": {"enum": ["Never", "Always"]},
            },
        },
        "usages": {
            "type": "array",
            "items": {"enum": ["digital signature", "key encipherment", "server auth", "client auth"]},
        },
        "uris": {"type": "array", "items": {"type": "string"}},
        "dnsNames": {"type": "array", "items": {"type": "string"}},
    },
}


def speaks_tls(container: Manifest) -> bool:
    return "UNDERSTUDY_TLS_CERT_FILE" in environment(container)


def files_of(name: str, component: str) -> dict[str, tuple[str, str]]:
    """Where each file of a pod comes from: its path, then the Secret and its key."""
    (pod,) = [each for _, each in pods(manifests(name)) if each["spec"]["containers"][0]["name"] == component]
    (volume,) = [each["projected"] for each in pod["spec"]["volumes"] if "projected" in each]
    assert volume["defaultMode"] == 0o440  # a key that others may read is refused
    found: dict[str, tuple[str, str]] = {}
    for source in (each["secret"] for each in volume["sources"]):
        found |= {f"/run/understudy/{item['path']}": (source["name"], item["key"]) for item in source["items"]}
    assert len(found) == sum(len(each["secret"]["items"]) for each in volume["sources"])  # none hides another
    return found


def test_the_default_speaks_no_tls_and_says_so_by_insecure_bind() -> None:
    for component in ("node", "router"):
        own = environment(containers(manifests(""))[component])
        assert own["UNDERSTUDY_INSECURE_BIND"] == "true"
        assert not [variable for variable in own if "TLS" in variable or "PEER" in variable]


@pytest.mark.parametrize("name", ["", *SETS], ids=["default", *SETS])
def test_probes_speak_as_the_port_does_and_ask_the_same_as_ever(name: str) -> None:
    for component in ("node", "router"):
        container = containers(manifests(name))[component]
        for probe in PROBES:
            asked = container[probe]["httpGet"]
            assert asked.get("scheme", "HTTP") == ("HTTPS" if speaks_tls(container) else "HTTP"), probe
            assert asked["path"] == ("/readyz" if probe == "readinessProbe" else "/livez")


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that Secrets may hold, but for certificates of an application."""
    folder = tmp_path_factory.mktemp("run")
    Keys(folder / "credentials.toml").add("ann", "reader")
    for name in ("cluster-secret", "gossip-key"):
        (folder / name).write_text("c" * 64)
    return folder


@pytest.mark.parametrize("name", ["", *SETS], ids=["default", *SETS])
@pytest.mark.parametrize("component", ["node", "router"])
def test_a_pod_of_every_set_of_values_starts_with_what_its_secrets_hold(
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
        access = NodeFleetSettings().access(FLEET, own["UNDERSTUDY_HOST"], is_node=True)
    else:
        access = node_access(ClusterNodeSettings()) if component == "node" else router_access(RouterSettings())
    is_open = values_of(name).get("auth", {}).get("existingSecret") is None
    assert access.exposure is (Exposure.UNGUARDED if is_open else None)
    assert (access.tls is not None and access.tls.server is not None) == (name in SECRETS)


@with_certificates
def test_a_node_has_one_certificate_and_trusts_the_authority_beside_it(name: str) -> None:
    _, node, _ = SECRETS[name]
    own, files = environment(containers(manifests(name))["node"]), files_of(name, "node")
    assert files[own["UNDERSTUDY_TLS_CERT_FILE"]] == (node, "tls.crt")
    assert files[own["UNDERSTUDY_TLS_KEY_FILE"]] == (node, "tls.key")
    assert files[own["UNDERSTUDY_PEER_CA_FILE"]] == (node, "ca.crt")
    assert "UNDERSTUDY_PEER_CERT_FILE" not in own


@with_certificates
def test_a_router_shows_readers_another_certificate_than_nodes(name: str) -> None:
    readers, _, router = SECRETS[name]
    own, files = environment(containers(manifests(name))["router"]), files_of(name, "router")
    assert files[own["UNDERSTUDY_TLS_CERT_FILE"]] == (readers, "tls.crt")
    assert files[own["UNDERSTUDY_TLS_KEY_FILE"]] == (readers, "tls.key")
    assert files[own["UNDERSTUDY_PEER_CERT_FILE"]] == (router, "tls.crt")
    assert files[own["UNDERSTUDY_PEER_KEY_FILE"]] == (router, "tls.key")
    assert files[own["UNDERSTUDY_PEER_CA_FILE"]] == (router, "ca.crt")


@with_certificates
def test_a_node_that_is_to_stop_asks_routers_by_tls_and_has_no_key_of_theirs(name: str) -> None:
    readers, _, _ = SECRETS[name]
    own, files = environment(containers(manifests(name))["node"]), files_of(name, "node")
    assert own["UNDERSTUDY_URL"] == "https://understudy-router:8080"
    assert files[own["UNDERSTUDY_CA_FILE"]] == (readers, "ca.crt")
    assert [key for secret, key in files.values() if secret == readers] == ["ca.crt"]


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
        assert [error.message for error in Draft7Validator(CERTIFICATE).iter_errors(each["spec"])] == []
        assert each["spec"]["issuerRef"]["name"] == "cluster-authority"
        for name in each["spec"].get("uris", []):
            parsed = parse_name(name)
            assert parsed is not None
            assert (parsed.trust_domain, parsed.application) == named
            found[each["spec"]["secretName"]] = parsed.role
    assert found == {"understudy-node-tls": PeerRole.NODE, "understudy-router-tls": PeerRole.ROUTER}


def test_prometheus_asks_nodes_and_routers_by_tls_for_a_name_that_their_certificates_have() -> None:
    made = manifests("cert-manager")
    names = {each["spec"]["secretName"]: each["spec"]["dnsNames"] for each in of_kind(made, "Certificate")}
    secrets = {"node": "understudy-node-tls", "router": "understudy-readers-tls"}
    for monitor in of_kind(made, "ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        secret = secrets[monitor["metadata"]["labels"]["app.kubernetes.io/component"]]
        assert endpoint["scheme"] == "https"
        assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": secret, "key": "ca.crt"}
        assert endpoint["tlsConfig"]["serverName"] in names[secret]


def test_a_mesh_needs_no_certificate_of_ours() -> None:
    made = manifests("monitoring")
    for component in ("node", "router"):
        own = environment(containers(made)[component])
        assert own["UNDERSTUDY_EXTERNAL_TLS_TERMINATION"] == "true"
        assert not speaks_tls(containers(made)[component])
    assert environment(containers(made)["node"])["UNDERSTUDY_URL"].startswith("http://")
    assert all("scheme" not in each["spec"]["endpoints"][0] for each in of_kind(made, "ServiceMonitor"))


def test_the_readme_says_which_names_certificates_need() -> None:
    text = README.read_text()
    for name in ("understudy-router", "understudy-nodes", "/node", "/router"):
        assert name in text
