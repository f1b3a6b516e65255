"""A real Kafka broker with TLS and SASL, and the certificates for it. Skips a test where there is no openssl."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.kafka.broker import KafkaBroker, jars

from understudy_shared.base.sockets import free_port

USER, PASSWORD = "reader", "a secret"

_SETTINGS = """
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location={server}
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_{user}="{password}";
"""


class Certificates(NamedTuple):
    """Files: a certificate authority, and a server's key and certificate in one."""

    authority: Path
    server: Path


class SecureBroker(KafkaBroker):
    """Clients with a password come in at `secure_servers`; tests make topics at `servers`."""

    def __init__(self, folder: Path, class_path: Path) -> None:
        super().__init__(folder, class_path)
        port = free_port()
        self.secure_servers = f"127.0.0.1:{port}"
        self.certificates = make_certificates(folder)
        settings = self._settings.read_text().replace(
            "listeners=PLAINTEXT", f"listeners=SASL_SSL://{self.secure_servers},PLAINTEXT"
        )
        more = _SETTINGS.format(server=self.certificates.server, user=USER, password=PASSWORD)
        self._settings.write_text(settings + more)


@contextmanager
def secure_broker(folder: Path) -> Iterator[SecureBroker]:
    found = jars()
    if isinstance(found, str):
        pytest.skip(found)
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    broker = SecureBroker(folder, found)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


def make_certificates(folder: Path, *, name: str = "authority") -> Certificates:
    """An authority, and a certificate of 127.0.0.1 that it signed."""
    authority, key, server = folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}-server.pem"
    request, signed, server_key = (folder / f"{name}-{each}" for each in ("request", "signed", "server.key"))
    extension = folder / f"{name}-extension"
    extension.write_text("subjectAltName=IP:127.0.0.1\n")
    new_key = ["-newkey", "rsa:2048", "-nodes"]
    _openssl("req", "-x509", *new_key, "-keyout", key, "-out", authority, "-subj", f"/CN={name}", "-days", "2")
    _openssl("req", *new_key, "-keyout", server_key, "-out", request, "-subj", "/CN=127.0.0.1")
    sign: list[str | Path] = ["-CA", authority, "-CAkey", key, "-CAcreateserial", "-extfile", extension]
    _openssl("x509", "-req", "-in", request, *sign, "-out", signed, "-days", "2")
    server.write_text(server_key.read_text() + signed.read_text())
    return Certificates(authority, server)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=True, timeout=60)
