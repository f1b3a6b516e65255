"""Reasons why a TLS connection fails, with their texts and labels; and who may call whom, by names (pure).

The name of a service is the only URI among the subjectAltNames of its certificate, in SPIFFE style:
`spiffe://<trust domain>/understudy/<application>/<role>`. Characters of the application that a path may not have are
percent-encoded.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import quote


class TlsReason(StrEnum):
    """The reason for refusing a connection, or an internal call on it; a label of `understudy_tls_refusals_total`."""

    PLAIN_HTTP = "plain-http"
    NO_TLS = "no-tls"
    VERSION = "version"
    NO_CERTIFICATE = "no-certificate"
    UNTRUSTED = "untrusted"
    EXPIRED = "expired"
    NOT_YET_VALID = "not-yet-valid"
    REVOKED_OR_BAD = "bad-certificate"
    REFUSED_OURS = "refused-ours"
    IDENTITY = "identity"
    TRUST_DOMAIN = "trust-domain"
    APPLICATION = "application"
    ROLE = "role"
    CLOSED = "closed"
    OTHER = "other"


class TlsSide(StrEnum):
    """The side that refused: the one that accepts connections, or the one that opens them."""

    ACCEPT = "accept"
    CONNECT = "connect"


class TlsTrouble(NamedTuple):
    """The reason why a peer is refused. `why` has the peer as its subject."""

    reason: TlsReason
    why: str


NO_CERTIFICATE = TlsTrouble(TlsReason.NO_CERTIFICATE, "it shows no certificate")

PEER_TROUBLE = "understudy.peer_trouble"
"""Key by which a transport, and the scope of a request, say why the other side is not a peer; None when it is one."""


class PeerRefusedError(ssl.SSLError):
    """The certificate of a peer is valid, but names another service than expected."""

    def __init__(self, trouble: TlsTrouble) -> None:
        super().__init__(1, trouble.why)
        self.trouble = trouble


_UNTRUSTED = TlsTrouble(TlsReason.UNTRUSTED, "its certificate is not signed by an authority that this service trusts")
_VERIFIED = {
    7: _UNTRUSTED,  # by another authority of the same name
    9: TlsTrouble(TlsReason.NOT_YET_VALID, "its certificate is not valid yet: check the clocks of both hosts"),
    10: TlsTrouble(TlsReason.EXPIRED, "its certificate has expired"),
    18: _UNTRUSTED,
    19: _UNTRUSTED,
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    26: TlsTrouble(
        TlsReason.REVOKED_OR_BAD,
        "its certificate is for another purpose (extendedKeyUsage): nodes need serverAuth and clientAuth, routers "
        "clientAuth",
    ),
}
"""Troubles by OpenSSL's numbers (X509_V_ERR_...)."""

PLAIN_HTTP = TlsTrouble(TlsReason.PLAIN_HTTP, "it speaks plain HTTP at a port for TLS")
_HTTP_METHOD = re.compile(rb"[A-Z]{3,10} ")
_OURS = "it refuses the certificate of this service"
_OLD = TlsTrouble(TlsReason.VERSION, "it speaks only versions or ciphers of TLS that are not accepted here")
_NO_TLS = TlsTrouble(TlsReason.NO_TLS, "it does not speak TLS at this port")
_BY_REASON = (
    ("HTTP_REQUEST", PLAIN_HTTP),
    ("HTTPS_PROXY_REQUEST", TlsTrouble(TlsReason.PLAIN_HTTP, "it takes a port for TLS for an HTTP proxy")),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", NO_CERTIFICATE),
    ("ALERT_CERTIFICATE_REQUIRED", TlsTrouble(TlsReason.REFUSED_OURS, "it asks for a certificate, which is missing")),
    ("ALERT_CERTIFICATE_EXPIRED", TlsTrouble(TlsReason.REFUSED_OURS, f"{_OURS}: it has expired")),
    ("ALERT_UNKNOWN_CA", TlsTrouble(TlsReason.REFUSED_OURS, f"{_OURS}: it does not trust who signed it")),
    ("ALERT_BAD_CERTIFICATE", TlsTrouble(TlsReason.REFUSED_OURS, _OURS)),
    ("ALERT_CERTIFICATE", TlsTrouble(TlsReason.REFUSED_OURS, _OURS)),
    ("ALERT_UNSUPPORTED_CERTIFICATE", TlsTrouble(TlsReason.REFUSED_OURS, _OURS)),
    ("ALERT_PROTOCOL_VERSION", _OLD),
    ("UNSUPPORTED_PROTOCOL", _OLD),
    ("NO_SHARED_CIPHER", _OLD),
    ("VERSION_TOO_LOW", _OLD),
    ("WRONG_VERSION_NUMBER", _NO_TLS),
    ("RECORD_LAYER_FAILURE", _NO_TLS),
    ("PACKET_LENGTH_TOO_LONG", _NO_TLS),
    ("UNEXPECTED_EOF", TlsTrouble(TlsReason.CLOSED, "it closed the connection within the handshake")),
)
"""Troubles by parts of OpenSSL's reasons; the first that fits counts."""


def is_http(first: bytes) -> bool:
    """Whether the first bytes of a peer begin a request in plain HTTP. OpenSSL 3.5 says it only of GET."""
    return _HTTP_METHOD.match(first) is not None


def tls_trouble(error: BaseException | None) -> TlsTrouble | None:
    """Find the TLS trouble in an error or in its cause; None if there is no TLS trouble."""
    found = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    if found is None:
        return None
    if isinstance(found, PeerRefusedError):
        return found.trouble
    code = getattr(found, "verify_code", 0)
    if code in _VERIFIED:
        return _VERIFIED[code]
    reason = str(getattr(found, "reason", None) or found)  # an error that was made by hand has no code
    for part, trouble in _BY_REASON:
        if part in reason:
            return trouble
    said = getattr(found, "verify_message", None) or reason or str(found) or type(found).__name__
    return TlsTrouble(TlsReason.OTHER, f"the TLS handshake failed: {said}")


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
    """Return the name in a verified certificate, as `getpeercert` gives it; or the reason why it has no name."""
    if not certificate:
        return NO_CERTIFICATE
    uris = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
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
