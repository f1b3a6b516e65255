"""Contexts for TLS of the standard library: one for connections to a service, one for its connections to nodes.

A context never changes. `CurrentContext` hands each new connection the newest one, so that certificates are exchanged
without touching those that are open.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from understudy_shared.base.errors import SettingsError
from understudy_shared.tls.names import Accepted
from understudy_shared.tls.trouble import PeerRefusedError


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
