"""Nothing that is a secret, or may be one, goes into a bundle; what says where a fault is does."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from understudy.debug.redaction import Redaction, is_secret_name, known_secrets

KEY = "usk_0123456789abcdef_" + "Q" * 43
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"
SAS = "c2FzLXNpZ25hdHVyZQ%3D%3D"
PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIBplanted\nmore+/==\n-----END EC PRIVATE KEY-----"

PLANTED = {
    "an API key": (f"presented {KEY} twice", "Q" * 43),
    "a token": (f"got {JWT}, refused", "eyJzdWIiOiJhIn0"),
    "a header": ("Authorization: Bearer abcdef0123456789", "abcdef0123456789"),
    "a basic login": ("authorization='Basic dXNlcjpodW50ZXIy'", "dXNlcjpodW50ZXIy"),
    "a password in a URL": ("cannot reach redis://flights:hunter2@bus:6379/0", "hunter2"),
    "a token in a URL": ("https://ghp_abcdef@code.example/x", "ghp_abcdef"),
    "an odd password in a URL": ("redis://flights:hun/te#r2@bus:6379/0", "hun/te#r2"),
    "a SAS in a URL": (f"https://a.blob.example/c?sv=2024&sig={SAS}&se=1", SAS),
    "a SAS without a URL": (f"AZURE_SAS=sv=2024&sig={SAS}", SAS),
    "a connection string": ("AccountName=a;AccountKey=bm90IG11Y2g9;EndpointSuffix=x", "bm90IG11Y2g9"),
    "a setting": ('password = "hunter2"', "hunter2"),
    "a member in text": ('{"client_secret": "hunter2"}', "hunter2"),
    "a key of a store": ("AKIAIOSFODNN7EXAMPLE was refused", "IOSFODNN7EXAMPLE"),
    "a secret key of a store": ("aws_secret_access_key=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
    "a private key": (f"read {PEM}", "planted"),
    "a private key in JSON": (f"read {PEM}".replace("\n", "\\n"), "planted"),
    "a lease": ("snapshot=ul1.WyJmbGlnaHRzIl0", "WyJmbGlnaHRzIl0"),
}


@pytest.mark.parametrize(("text", "secret"), PLANTED.values(), ids=PLANTED)
def test_a_secret_in_text_is_hidden(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in Redaction([]).text(text)


@pytest.mark.parametrize(("text", "secret"), PLANTED.values(), ids=PLANTED)
def test_a_secret_in_a_document_is_hidden_wherever_it_stands(text: str, secret: str) -> None:
    found = Redaction([]).value({"events": [{"detail": text, "n": 7}], text: True})
    assert secret not in str(found)
    assert found["events"][0]["n"] == 7


def test_a_member_whose_name_says_it_is_hidden_whatever_it_looks_like() -> None:
    document = {"password": "blue", "api_key": "a", "clientSecret": "b", "api_key_file": "/run/key", "tokens": 3}
    assert Redaction([]).value(document) == {
        "password": "***", "api_key": "***", "clientSecret": "***", "api_key_file": "/run/key", "tokens": 3,
    }  # fmt: skip


def test_what_this_process_knows_to_be_a_secret_is_hidden_in_every_form() -> None:
    environ = {
        "UNDERSTUDY_API_KEY": "plain and simple",
        "UNDERSTUDY_REDIS": "redis://u:pa$$word@bus/0",
        "AWS_SESSION_TOKEN": "session",
        "HOME": "/root",
    }
    known = known_secrets(environ, "shown-key")
    redaction = Redaction(known)
    for secret in ("plain and simple", "pa$$word", "session", "shown-key"):
        assert redaction.text(f"x {secret} y {quote(secret, safe='')} z") == "x *** y *** z"
    assert redaction.text("/root") == "/root"


@pytest.mark.parametrize(
    "text",
    [
        'understudy_lookups_total{store="aircraft",outcome="found"} 15.0',
        "cannot reach redis://bus:6379/0: Connection refused",
        "aircraft 0_3 is RESTORING version=418 versions_behind=2",
        "s3://bucket/checkpoints/flights was replaced by another query",
        'understudy_bus_refused_total{reason="bad-signature"} 1.0',
        "position us1.WyJmbGlnaHRzIl0 at node-1:7101",
    ],
)
def test_what_says_where_a_fault_is_stays(text: str) -> None:
    assert Redaction(known_secrets({"X_TOKEN": "abc"}, "")).text(text) == text


def test_names_of_files_are_no_secrets() -> None:
    assert [is_secret_name(name) for name in ("redis_password", "redis_password_file", "gossip_key_file")] == [
        True, False, False,
    ]  # fmt: skip
