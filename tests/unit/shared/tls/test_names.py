"""Names in certificates: exactly one, of this trust domain, this application and a role that may ask."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.tls.trouble import (
    Accepted,
    PeerName,
    PeerRole,
    TlsReason,
    TlsTrouble,
    application_in_names,
    name_in,
    parse_name,
)

NODE = "spiffe://example.org/understudy/flights/node"
ACCEPTED = Accepted("example.org", "flights", tuple(PeerRole))


def certificate(*uris: str, **more: Any) -> dict[str, Any]:
    return {"subjectAltName": (("DNS", "n1.example.org"), *(("URI", uri) for uri in uris)), **more}


@pytest.mark.parametrize("role", ["node", "router"])
def test_a_service_of_the_same_application_is_accepted(role: str) -> None:
    assert ACCEPTED.why_not(certificate(f"spiffe://example.org/understudy/flights/{role}")) is None


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (None, TlsReason.NO_CERTIFICATE),
        ({}, TlsReason.NO_CERTIFICATE),
        (certificate(), TlsReason.IDENTITY),
        ({"subjectAltName": (("DNS", NODE),)}, TlsReason.IDENTITY),
        (certificate(NODE, NODE), TlsReason.IDENTITY),
        (certificate("https://example.org/understudy/flights/node"), TlsReason.IDENTITY),
        (certificate("spiffe://example.org/flights/node"), TlsReason.IDENTITY),
        (certificate("spiffe://example.org/understudy/flights/node/"), TlsReason.IDENTITY),
        (certificate("spiffe://example.org/understudy//node"), TlsReason.IDENTITY),
        (certificate("spiffe:///understudy/flights/node"), TlsReason.IDENTITY),
        (certificate("SPIFFE://example.org/understudy/flights/node"), TlsReason.IDENTITY),
        (certificate("spiffe://example.org.evil/understudy/flights/node"), TlsReason.TRUST_DOMAIN),
        (certificate("spiffe://example.org/understudy/flights2/node"), TlsReason.APPLICATION),
        (certificate("spiffe://example.org/understudy/flights/reader"), TlsReason.ROLE),
        (certificate("spiffe://example.org/understudy/flights/Node"), TlsReason.ROLE),
    ],
)
def test_anybody_else_is_refused_by_name(shown: dict[str, Any] | None, reason: TlsReason) -> None:
    trouble = ACCEPTED.why_not(shown)
    assert trouble is not None
    assert trouble.reason is reason
    assert len(trouble.why) < 500


@given(st.text(min_size=1), st.text(min_size=1))
def test_an_application_of_any_name_is_told_from_every_other(one: str, other: str) -> None:
    try:
        names = [application_in_names(text) for text in (one, other)]
    except UnicodeEncodeError:  # half of a surrogate pair is no name of anything
        return
    found = [parse_name(f"spiffe://d/understudy/{name}/node") for name in names]
    assert found == [PeerName("d", name, "node") for name in names]
    assert (found[0] == found[1]) == (one == other)


@given(st.text())
def test_no_text_is_taken_for_a_name_that_it_does_not_write(text: str) -> None:
    found = name_in(certificate(text))
    assert isinstance(found, TlsTrouble) or str(found) == text
