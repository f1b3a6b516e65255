"""The stack by TLS: the certificates that its script makes are those that its settings ask for and its names need."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.repository import ROOT
from tests.support.services.deploy_files import (
    HTTP,
    IMAGES,
    SERVICES,
    environment_of,
    read_compose,
)

from understudy_node.settings import ClusterNodeSettings
from understudy_router.settings import RouterSettings

FOLDER = ROOT / "deploy" / "compose"
SCRIPT = FOLDER / "certificates.sh"
OVERRIDE: dict[str, dict[str, Any]] = read_compose((FOLDER / "tls.yml").read_text())["services"]
MAKER = OVERRIDE["certificates"]
MOUNTED = "/run/understudy"
each_service = pytest.mark.parametrize("name", HTTP)


def make(folder: Path) -> str:
    """Run the script as the stack does, but into `folder`; returns what it says."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    _, script, target, *rest = MAKER["command"]
    mounts = dict(volume.split(":")[1::-1] for volume in MAKER["volumes"])
    assert ROOT / mounts[script] == SCRIPT
    assert mounts[target] == "certificates"
    done = subprocess.run(["/bin/sh", SCRIPT, folder, *rest], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates") / "made"
    make(folder)
    return folder


def variables_of(name: str, made: Path) -> dict[str, str]:
    own = environment_of(name) | OVERRIDE[name]["environment"]
    return {variable: value.replace(MOUNTED, str(made)) for variable, value in own.items()}


@each_service
def test_services_start_with_what_the_script_makes(name: str, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in variables_of(name, made).items():
        monkeypatch.setenv(variable, value)
    is_node = IMAGES[name] == "node"
    access = (ClusterNodeSettings() if is_node else RouterSettings()).own_access()
    assert access.tls is not None
    assert access.tls.server is not None
    assert access.tls.peers is not None
    assert access.tls.asks_peers == is_node


@each_service
def test_certificates_have_the_names_by_which_a_service_is_asked(name: str, made: Path) -> None:
    own = variables_of(name, made)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own["UNDERSTUDY_TLS_CERT_FILE"], own["UNDERSTUDY_TLS_KEY_FILE"])
    client = ssl.create_default_context(cafile=str(made / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does
    for host in ("127.0.0.1", "localhost", SERVICES[name]["hostname"]):
        shake_hands(server, client, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client, "example.org")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """A handshake in memory; it raises what the client finds wrong."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepts = server.wrap_bio(to_server, to_client, server_side=True)
    connects = client.wrap_bio(to_client, to_server, server_hostname=host)
    waiting = [connects, accepts]
    for _ in range(8):
        for side in tuple(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert waiting == []


def test_keys_are_for_their_user_alone_and_the_authoritys_is_gone(made: Path) -> None:
    assert sorted(each.name for each in made.iterdir()) == [
        *("ca.crt", "node.crt", "node.key", "readers.crt", "readers.key", "router.crt", "router.key")
    ]
    assert {stat.S_IMODE(each.stat().st_mode) for each in made.glob("*.key")} == {0o600}


def test_a_second_start_keeps_the_certificates_and_makes_those_anew_that_end(tmp_path: Path) -> None:
    make(tmp_path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert "kept" in make(tmp_path)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
    (tmp_path / "ca.crt").unlink()
    make(tmp_path)
    after = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert set(after) == set(before)
    assert all(after[name] != before[name] for name in after)
