"""Certificates of routers and nodes, signed by a test's own authorities, made in this process."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DOMAIN, APPLICATION = "test.local", "counting"

_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""The usage of an authority's key. Python 3.13 and newer refuse one without it."""


class Files(NamedTuple):
    """Two files in PEM format."""

    certificate: Path
    key: Path

    def settings(self, prefix: str = "tls") -> dict[str, str]:
        return {f"{prefix}_cert_file": str(self.certificate), f"{prefix}_key_file": str(self.key)}


def uri(role: str, *, application: str = APPLICATION, domain: str = DOMAIN) -> str:
    """The name of a service."""
    return f"spiffe://{domain}/understudy/{application}/{role}"


class Signer:
    """An authority. `file` is what those who trust it need."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.file = folder, folder / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name, self._key_identifier = (
            _name(name),
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()),
        )
        made = _builder(self._name, self._name, self._key.public_key(), timedelta(days=30))
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        made = made.add_extension(_SIGNS, critical=True)
        made = made.add_extension(self._key_identifier, critical=False)
        self._own = made.sign(self._key, hashes.SHA256())
        self.file.write_bytes(self._own.public_bytes(serialization.Encoding.PEM))

    def server_context(self, *, asks: bool = False) -> ssl.SSLContext:
        """Return the context of a server with a certificate of this authority; `asks`: of its clients, too."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue("server"))
        if asks:
            context.load_verify_locations(self.file)
            context.verify_mode = ssl.CERT_REQUIRED
            context.maximum_version = ssl.TLSVersion.TLSv1_2  # a client learns in the handshake that it was refused
        return context

    def issue(
        self,
        name: str,
        *uris: str,
        host: str = "",
        lasts: timedelta = timedelta(days=30),
        began: timedelta = timedelta(hours=1),
    ) -> Files:
        """A certificate for this host, else localhost, with these URIs, and its key, which only this user may read."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(each) for each in uris]
        here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        names += [x509.DNSName(host)] if host else here
        made = _builder(_name(name), self._name, key.public_key(), lasts, began)
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._key_identifier)
        made = made.add_extension(issuer, critical=False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = made.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        files = Files(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        files.key.touch(mode=0o600)
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        signed = made.sign(self._key, hashes.SHA256())
        files.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return files

    def client(self, shown: Files | None = None) -> ssl.SSLContext:
        """The context of a reader who trusts this authority, and shows a certificate if he has one."""
        context = ssl.create_default_context(cafile=str(self.file))
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does
        if shown is not None:
            context.load_cert_chain(*shown)
        return context


def replace(old: Files, new: Files) -> None:
    """Put other files in the place of two that a service uses, as an operator's tool does."""
    for name in ("certificate", "key"):
        there = getattr(old, name)
        fresh = there.with_suffix(".fresh")
        fresh.touch(mode=0o600)
        fresh.write_bytes(getattr(new, name).read_bytes())
        fresh.rename(there)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    lasts: timedelta,
    began: timedelta = timedelta(hours=1),
) -> x509.CertificateBuilder:
    start = datetime.now(UTC) - began
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + lasts)
    )
