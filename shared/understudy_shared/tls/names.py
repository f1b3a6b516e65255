"""Names of services in certificates, in SPIFFE style, by application and role (pure).

A name is the only URI among the subjectAltNames: `spiffe://<trust domain>/understudy/<application>/<role>`. Characters
of the application that a path may not have are percent-encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import quote

from understudy_shared.tls.trouble import NO_CERTIFICATE, TlsReason, TlsTrouble

_SCHEME, _PRODUCT = "spiffe://", "understudy"

MAX_SHOWN = 200
"""Limit on the characters of a stranger's name that are written to a log."""


class PeerRole(StrEnum):
    """The role of a service for the others of its application."""

    ROUTER = "router"
    NODE = "node"


class PeerName(NamedTuple):
    """The name of a service. `application` and `role` are as they stand in the name."""

    trust_domain: str
    application: str
    role: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.trust_domain}/{_PRODUCT}/{self.application}/{self.role}"


def application_in_names(application_id: str) -> str:
    """Quote an application as names write it."""
    return quote(application_id, safe="")


def uris_in(certificate: Mapping[str, Any] | None) -> list[str]:
    """List the URIs among the subjectAltNames of a certificate, as `getpeercert` gives it."""
    return [str(value) for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "URI"]


def parse_name(uri: str) -> PeerName | None:
    """Parse the name in a URI; None when it is not a name of Understudy."""
    if not uri.startswith(_SCHEME):
        return None
    match uri.removeprefix(_SCHEME).split("/"):
        case [str() as domain, str() as product, str() as application, str() as role] if product == _PRODUCT:
            return PeerName(domain, application, role) if domain and application and role else None
        case _:
            return None


def name_in(certificate: Mapping[str, Any] | None) -> PeerName | TlsTrouble:
    """Return the name in a certificate that was verified; or the reason why it has no name."""
    if not certificate:
        return NO_CERTIFICATE
    uris = uris_in(certificate)
    found = parse_name(uris[0]) if len(uris) == 1 else None
    if found is None:
        shown = ", ".join(uris)[:MAX_SHOWN] or "no URI"
        return TlsTrouble(
            TlsReason.IDENTITY, f"its certificate names {shown}, not one {_SCHEME}DOMAIN/{_PRODUCT}/APPLICATION/ROLE"
        )
    return found


class Accepted(NamedTuple):
    """The services that a service accepts: those of its own trust domain and application with one of these roles."""

    trust_domain: str
    application: str
    roles: Collection[str]

    def why_not(self, certificate: Mapping[str, Any] | None) -> TlsTrouble | None:
        """Return why the holder of a certificate that was verified is not accepted; None when it is."""
        name = name_in(certificate)
        if isinstance(name, TlsTrouble):
            return name
        for reason, what, has, wants in (
            (TlsReason.TRUST_DOMAIN, "trust domain", name.trust_domain, (self.trust_domain,)),
            (TlsReason.APPLICATION, "application", name.application, (self.application,)),
            (TlsReason.ROLE, "role", name.role, self.roles),
        ):
            if has not in wants:
                wanted = " or ".join(sorted(wants))
                return TlsTrouble(reason, f"its certificate is of the {what} {has[:MAX_SHOWN]!r}, not {wanted}")
        return None
