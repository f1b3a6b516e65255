"""The secret that the nodes and routers of one application share, and the credential that they show each other.

The secret itself is never sent. Each service derives a key from it for its application. It sends the key of the first
secret in the file; nodes accept the key of any secret in the file. To replace a secret, write the new one below the old
one everywhere, then swap the two, then remove the old one.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from urllib.parse import quote

from understudy_shared.auth.credentials import CredentialsError
from understudy_shared.auth.presented import ApiKey, derived_key
from understudy_shared.auth.principals import PEER
from understudy_shared.base.files import WatchedFile
from understudy_shared.http.target import APPLICATION_HEADER
from understudy_shared.tls.service_tls import ServiceTls

MAX_SECRETS = 2
MIN_SECRET_CHARS, MAX_SECRET_CHARS = 32, 1024
_FIX = "Write a line of 32 to 1,024 random characters, such as: openssl rand -base64 32"


def parse_cluster_secrets(data: bytes) -> tuple[bytes, ...]:
    """Parse the secrets of a file, one a line. Raises CredentialsError, which shows no secret."""
    lines = tuple([line.strip() for line in data.splitlines() if line.strip()])
    if not lines:
        raise CredentialsError("there is no secret in the file", fix=_FIX)
    if len(lines) > MAX_SECRETS:
        raise CredentialsError(f"it has {len(lines)} secrets, above {MAX_SECRETS}", fix="Remove the oldest")
    for number, line in enumerate(lines, 1):
        if not MIN_SECRET_CHARS <= len(line) <= MAX_SECRET_CHARS:
            raise CredentialsError(f"the secret has {len(line)} characters", where=f"line {number}", fix=_FIX)
    return lines


@dataclass(slots=True)
class _Shown:
    """The credentials that are derived from the secrets in the file."""

    header: bytes = b""
    keys: Mapping[str, ApiKey] = field(default_factory=dict)
    session_keys: tuple[bytes, ...] = ()


class ClusterIdentity:
    """The identity that a service shows to the nodes of its application or fleet, and by which it recognizes peers."""

    def __init__(
        self, file: WatchedFile[tuple[bytes, ...]] | None, application_id: str, tls: ServiceTls | None = None
    ) -> None:
        """Read the file; without it the service sends no key and recognizes no peer. `tls`: its certificates."""
        self.file = file
        self.tls = tls
        self.audit_secret: bytes | None = None
        """Secret of the marks in the audit log, so that all services of the application mark a key alike."""
        self._name = application_id
        self._names = naming(application_id)
        self._shown = _Shown()
        self._derive()

    def __repr__(self) -> str:
        return f"ClusterIdentity({self._name}, {len(self.keys)} keys)"

    def within(self, application_id: str) -> ClusterIdentity:
        """Return the same identity for calls to one application of a fleet. It also follows changes of the file."""
        inner = copy(self)
        inner._names = naming(application_id)  # noqa: SLF001  # of the same class
        return inner

    @property
    def header(self) -> bytes:
        """The header lines of a request to a node: its application, and the key. They change with the file."""
        return self._names + self._shown.header

    @property
    def keys(self) -> Mapping[str, ApiKey]:
        """The keys of its peers, by id."""
        return self._shown.keys

    @property
    def session_keys(self) -> tuple[bytes, ...]:
        """Keys that sign the sessions of browsers: the first signs, all are accepted. Empty without a secret."""
        return self._shown.session_keys

    @property
    def peers(self) -> ssl.SSLContext | None:
        """The context for TLS to nodes; None: nodes are called by plain HTTP."""
        return None if self.tls is None else self.tls.peers

    def tls_failure(self, host: str, error: BaseException | None) -> str | None:
        """Return the TLS cause of a failed connection to a node, if any. It is counted and logged."""
        return None if self.tls is None else self.tls.failed_to_connect(host, error)

    def look(self) -> bool:
        """Read the files if they changed. Return whether the secrets changed. Blocks."""
        if self.tls is not None:
            self.tls.look()
        if self.file is None or not self.file.look():
            return False
        self._derive()
        return True

    def _derive(self) -> None:
        if self.file is None:
            return
        secrets = self.file.value
        self.audit_secret = derived_key(secrets[0], f"audit log of {self._name}").text.encode()
        derived = [derived_key(secret, f"peers of {self._name}") for secret in secrets]
        shown = self._shown  # the identities within applications share it
        shown.session_keys = tuple(
            [derived_key(secret, f"sessions of {self._name}").text.encode() for secret in secrets]
        )
        shown.keys = {key.key_id: ApiKey(key.key_id, bytes.fromhex(key.sha256), PEER) for key in derived}
        shown.header = b"authorization: Bearer %b\r\n" % derived[0].text.encode()


def naming(application_id: str) -> bytes:
    """Return the header line that names the application of an internal call; empty without one."""
    return b"%b: %b\r\n" % (APPLICATION_HEADER, quote(application_id, safe="").encode()) if application_id else b""
