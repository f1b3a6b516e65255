"""Reads the files of a service's TLS and makes its contexts; refuses what would fail at the first connection.

Each certificate is tried in a handshake of the service with itself, in memory: that is the standard library's way to
learn what is in it, and it shows that the key fits, the chain holds, and nothing has expired. A context never changes.
`CurrentContext` hands each new connection the newest one, so that certificates are exchanged without touching those
that are open.
"""

from __future__ import annotations

import re
import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from understudy_shared.base.errors import SettingsError
from understudy_shared.tls.trouble import (
    Accepted,
    PeerName,
    PeerRefusedError,
    PeerRole,
    TlsTrouble,
    application_in_names,
    name_in,
    tls_trouble,
)


class Pair(NamedTuple):
    """A certificate with its chain, and its key, as PEM. Without a file of its own the key is in the other one."""

    certificate: Path
    key: Path | None = None

    @property
    def key_file(self) -> Path:
        return self.key or self.certificate


class _PeerObject(ssl.SSLObject):
    """A connection to a node: its handshake fails when the node is not the expected one."""

    def do_handshake(self) -> None:
        super().do_handshake()
        context = self.context
        assert isinstance(context, PeerContext)
        trouble = context.accepted.why_not(self.getpeercert())
        if trouble is not None:
            raise PeerRefusedError(trouble)


class PeerContext(ssl.SSLContext):
    """The context for connections to nodes. A node's name takes the place of its host name: nodes come and go at
    addresses that no authority knows.
    """

    sslobject_class = _PeerObject
    accepted: Accepted


def server_context(pair: Pair, peer_ca: Path | None) -> ssl.SSLContext:
    """Make a server context of TLS 1.2 and later. With `peer_ca` it asks clients for a certificate, and needs no
    answer.

    Raises OSError and SettingsError for files that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load(context, pair)
    if peer_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(peer_ca)
        # A session that is resumed shows the certificate of the time when it began, verified by the authority of then.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def peer_context(pair: Pair, peer_ca: Path, accepted: Accepted) -> PeerContext:
    """Make a client of TLS 1.3 alone that trusts `peer_ca` alone, for `accepted` peers; raise as `server_context`."""
    context = PeerContext(ssl.PROTOCOL_TLS_CLIENT)
    context.accepted = accepted
    context.check_hostname = False  # PeerContext checks the name in the certificate instead, before anything is sent.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(peer_ca)
    _load(context, pair)
    return context


class CurrentContext(ssl.SSLContext):
    """A context for clients that gives each connection the newest context that there is."""

    _current: Callable[[], ssl.SSLContext]

    @classmethod
    def giving(cls, current: Callable[[], ssl.SSLContext]) -> CurrentContext:
        made = cls(ssl.PROTOCOL_TLS_CLIENT)
        made._current = current
        return made

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        return self._current().wrap_bio(*args, **kwargs)


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    context.load_cert_chain(pair.certificate, pair.key, password=_refuse_password)


def _refuse_password() -> NoReturn:
    """Refuse an encrypted key: OpenSSL would ask the terminal."""
    raise SettingsError(
        "the key is encrypted with a password",
        fix="Write it without one, for this user alone: openssl pkey -in KEY -out NEW && chmod 600 NEW",
    )


_FIRST_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
MAX_FILE_BYTES = 1024 * 1024
Made = TypeVar("Made")
_FOR_OTHERS = stat.S_IROTH | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class TlsPlan:
    """The files of a service: `server` for its own port, `peer` for its calls to nodes, `peer_ca` for both."""

    application_id: str
    role: PeerRole
    server: Pair | None
    peer: Pair | None
    peer_ca: Path | None

    @property
    def asks_peers(self) -> bool:
        """Whether internal calls need a certificate."""
        return self.peer_ca is not None and self.role is PeerRole.NODE

    @property
    def files(self) -> list[Path]:
        pairs = [pair for pair in (self.server, self.peer) if pair is not None]
        found = [path for pair in pairs for path in (pair.certificate, pair.key_file)]
        return list(dict.fromkeys([*found, *([] if self.peer_ca is None else [self.peer_ca])]))


Files = tuple[Path | None, Path | None]
"""A certificate and its key, as settings name them."""


def tls_plan(
    application_id: str, role: PeerRole, *, server: Files, peer: Files, peer_ca: Path | None
) -> TlsPlan | None:
    """Plan the use of files; None without any. Raises SettingsError for settings that contradict each other (pure)."""
    own, shown = _pair(server, "tls"), _pair(peer, "peer") or _pair(server, "tls")
    if peer_ca is None:
        if peer[0] is not None:
            raise SettingsError(
                "a certificate for calls to nodes is given, but no authority that signs for nodes",
                where="peer_ca_file",
                fix="Give --peer-ca-file, or leave --peer-cert-file out",
            )
        return None if own is None else TlsPlan(application_id, role, own, None, None)
    if shown is None or (own is None and role is PeerRole.NODE):
        missing = "tls" if role is PeerRole.NODE else "peer"
        raise SettingsError(
            f"an authority for routers and nodes is given, but no certificate of this {role}",
            where=f"{missing}_cert_file",
            fix=f"Give --{missing}-cert-file and --{missing}-key-file",
        )
    return TlsPlan(application_id, role, own, shown, peer_ca)


def _pair(files: Files, prefix: str) -> Pair | None:
    certificate, key = files
    if certificate is not None:
        return Pair(certificate, key)
    if key is not None:
        raise SettingsError(
            "there is a key, and no certificate", where=f"{prefix}_cert_file", fix=f"Give --{prefix}-cert-file"
        )
    return None


class Lifetime(NamedTuple):
    """The time in which a certificate is valid, in seconds since 1970."""

    begins_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The contexts made of the files. `peers`: the services that may make internal calls. `lifetimes` are by file."""

    server: ssl.SSLContext | None
    client: PeerContext | None
    peers: Accepted | None
    lifetimes: Mapping[Path, Lifetime]


def load(plan: TlsPlan) -> TlsMaterial:
    """Load the contexts by the files as they are now. It blocks. Raises SettingsError: which file is wrong, and how."""
    for path in plan.files:
        _require_readable(path)
    for pair in (plan.server, plan.peer):
        if pair is not None:
            _require_private(pair.key_file)
    if plan.peer_ca is not None:
        _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), plan.peer_ca)
    lifetimes: dict[Path, Lifetime] = {}
    server = None
    if plan.server is not None:
        asked_ca = plan.peer_ca if plan.asks_peers else None
        server = _used(plan.server, lambda pair: server_context(pair, asked_ca))
        trust = _trusting(plan.server, asked_ca)
        seen, _ = _handshake(plan.server, server, trust)
        lifetimes[plan.server.certificate] = _lifetime(seen)
    if plan.peer is None or plan.peer_ca is None:
        return TlsMaterial(server, None, None, lifetimes)
    own = _own_name(plan, plan.peer, lifetimes)
    if plan.server is not None and plan.asks_peers and _own_name(plan, plan.server, {}) != own:
        raise SettingsError(
            "the two certificates of this node have different names",
            where=f"{plan.server.certificate} and {plan.peer.certificate}",
            fix="Leave the peer certificate out, or issue both with the same URI",
        )
    nodes = Accepted(own.trust_domain, own.application, (PeerRole.NODE,))
    callers = Accepted(own.trust_domain, own.application, tuple(PeerRole))
    ca = plan.peer_ca
    client = _used(plan.peer, lambda pair: peer_context(pair, ca, nodes))
    return TlsMaterial(server, client, callers if plan.asks_peers else None, lifetimes)


def _own_name(plan: TlsPlan, pair: Pair, lifetimes: dict[Path, Lifetime]) -> PeerName:
    """Return the name in the certificate that nodes are shown; it must be this service's."""
    assert plan.peer_ca is not None
    ca = plan.peer_ca
    asks = _used(pair, lambda each: server_context(each, ca))
    asks.verify_mode = ssl.CERT_REQUIRED
    shows = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    shows.check_hostname, shows.verify_mode = False, ssl.CERT_NONE
    shows.load_cert_chain(pair.certificate, pair.key)
    _, shown = _handshake(pair, asks, shows)
    lifetimes[pair.certificate] = _lifetime(shown)
    found = name_in(shown)
    application = application_in_names(plan.application_id)
    if isinstance(found, TlsTrouble) or (found.application, found.role) != (application, plan.role):
        what = found.why if isinstance(found, TlsTrouble) else f"it names {found}"
        raise SettingsError(
            f"the certificate is not that of a {plan.role} of application {plan.application_id}: {what}",
            where=str(pair.certificate),
            fix=f"Issue one whose only URI is {PeerName('YOUR.DOMAIN', application, plan.role)}",
        )
    return found


def _lifetime(certificate: Mapping[str, Any]) -> Lifetime:
    return Lifetime(*(float(ssl.cert_time_to_seconds(certificate[name])) for name in ("notBefore", "notAfter")))


def _trusting(pair: Pair, ca: Path | None) -> ssl.SSLContext:
    """Make a client that trusts `ca`, or else exactly this certificate: its real clients are not known here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if ca is not None:
        _trust(context, ca)
        return context
    first = _FIRST_CERTIFICATE.search(pair.certificate.read_bytes())
    if first is None:
        raise SettingsError("there is no certificate in the file", where=str(pair.certificate), fix=_PEM)
    context.load_verify_locations(cadata=first[0].decode("ascii", "replace"))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


_PEM = "Give a file in PEM format, the service's own certificate first and those between it and its authority after it"


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise SettingsError(
            f"the file has no certificate of an authority: {error.reason or error}",
            where=str(ca),
            fix="Give the certificates of those who sign for routers and nodes, in PEM format",
        ) from None


def _used(pair: Pair, make: Callable[[Pair], Made]) -> Made:
    """Return what `make` makes of a pair. Raises SettingsError that names the file."""
    try:
        return make(pair)
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error.reason):
            raise SettingsError(
                "the key is not that of the certificate",
                where=f"{pair.certificate} and {pair.key_file}",
                fix="Give the two files that were issued together",
            ) from None
        raise SettingsError(
            f"the certificate or its key cannot be used: {error.reason or error}",
            where=f"{pair.certificate} and {pair.key_file}",
            fix=_PEM,
        ) from None
    except SettingsError as error:
        raise SettingsError(error.what, where=error.where or str(pair.key_file), fix=error.fix) from None


def _handshake(
    pair: Pair, server: ssl.SSLContext, client: ssl.SSLContext
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Do a handshake in memory. Return the certificate that the client saw, and that the server saw.

    Raises SettingsError, about the pair, when a side refuses the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepts = server.wrap_bio(to_server, to_client, server_side=True)
    connects = client.wrap_bio(to_client, to_server, server_side=False, server_hostname="self.invalid")
    waiting = [connects, accepts]
    try:
        for _ in range(_MAX_FLIGHTS):
            waiting = [side for side in waiting if not _is_done(side)]
    except ssl.SSLError as error:
        trouble = tls_trouble(error)
        raise SettingsError(
            f"the certificate cannot be used: {'' if trouble is None else trouble.why}",
            where=str(pair.certificate),
            fix="Renew it, or give the file of the authority that signed it",
        ) from None
    if waiting:
        raise SettingsError("the certificate cannot be tried", where=str(pair.certificate), fix=_PEM)
    return connects.getpeercert() or {}, accepts.getpeercert() or {}


_MAX_FLIGHTS = 8
"""Limit on the flights of a handshake: TLS 1.3 needs three."""


def _is_done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _require_readable(path: Path) -> None:
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise SettingsError(
            f"the file cannot be read: {error.strerror}", where=str(path), fix="Check the path and who may read it"
        ) from None
    if size > MAX_FILE_BYTES:
        raise SettingsError(
            f"the file has more than {MAX_FILE_BYTES} bytes", where=str(path), fix="Check that it is the right file"
        )


def _require_private(key: Path) -> None:
    if key.stat().st_mode & _FOR_OTHERS:
        raise SettingsError(
            "every user of this machine may read or write the key",
            where=str(key),
            fix="chmod 600, or 640 with a group of its own. In Kubernetes: defaultMode 0440 of the volume",
        )
