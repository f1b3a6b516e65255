"""A token counts if its issuer signed it, for this service, for now: every other kind is refused by its own reason."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.services.issuer import SigningKey, TokenIssuer, token_issuer

from understudy_shared.auth.credentials import CredentialsError, Issuer, parse_credentials
from understudy_shared.auth.issuer_keys import COOL_DOWN_S, MAX_AGE_S, KeySetAge, check_token, issuer_of, parse_key_set
from understudy_shared.auth.presented import MAX_TOKEN_BYTES, BadTokenError, PresentedToken, presented_in
from understudy_shared.auth.principals import Action


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    with token_issuer() as found:
        yield found


def trusted(issuer: TokenIssuer, more: str = "") -> Issuer:
    return parse_credentials(issuer.in_toml(more=more).encode()).issuers[issuer.url]


def judged(issuer: TokenIssuer, token: str | bytes, now_s: float | None = None, more: str = "") -> str:
    """Whose a token is, or why it is refused."""
    presented = presented_in([(b"authorization", b"Bearer " + (token if isinstance(token, bytes) else token.encode()))])
    if not isinstance(presented, PresentedToken):
        return "this is not a token"
    mine = trusted(issuer, more)
    try:
        issuer_of(presented.token, {issuer.url: mine})
        found = check_token(presented, mine, parse_key_set(issuer.key_set()), time.time() if now_s is None else now_s)
    except BadTokenError as error:
        return error.reason
    assert presented.proves(found)
    return found.principal.name


def part(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def signed_with_public_key(issuer: TokenIssuer) -> str:
    """HS256 with what everybody can fetch: the classic confusion of algorithms."""
    public = issuer.keys[0].private.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    said = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': 'first'})}.{part(issuer.claims())}"
    mac = base64.urlsafe_b64encode(hmac.digest(pem, said.encode(), hashlib.sha256)).rstrip(b"=").decode()
    return f"{said}.{mac}"


def altered(token: str, **claims: object) -> str:
    head, payload, signature = token.split(".")
    found = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return f"{head}.{part({**found, **claims})}.{signature}"


STRANGER = SigningKey("first")
FORGED: dict[str, tuple[Callable[[TokenIssuer], str], str]] = {
    "alg none": (lambda i: f"{part({'alg': 'none', 'kid': 'first'})}.{part(i.claims())}.", "this is not a token"),
    "alg none, signed": (lambda i: f"{part({'alg': 'none', 'kid': 'first'})}.{part(i.claims())}.AA", "algorithm"),
    "HS256 with the public key": (signed_with_public_key, "algorithm that is not accepted"),
    "a stranger's key": (lambda i: i.token(key=STRANGER), "wrong signature"),
    "altered": (lambda i: altered(i.token(), groups=["chiefs"]), "wrong signature"),
    "another key's algorithm": (lambda i: i.token(key=i.keys[1], headers={"kid": "first"}), "its key is not for"),
    "RS512, which is not listed": (lambda i: i.token(headers={"alg": "RS512"}), "algorithm that is not accepted"),
    "unknown kid": (lambda i: i.token(headers={"kid": "other"}), "unknown key"),
    "no kid": (lambda i: i.token(headers={"kid": None}), "without kid"),
    "a key of its own": (lambda i: i.token(key=STRANGER, headers={"jwk": STRANGER.jwk}), "wrong signature"),
    "a key set of its own": (
        lambda i: i.token(key=SigningKey("mine"), headers={"jku": "http://127.0.0.1:1/"}),
        "unknown key",
    ),
    "crit": (lambda i: i.token(headers={"crit": ["exp"]}), "kind"),
    "another kind": (lambda i: i.token(headers={"typ": "logout+jwt"}), "kind"),
    "another issuer": (lambda i: i.token(iss="https://elsewhere.example/"), "unknown issuer"),
    "no issuer": (lambda i: i.token(iss=None), "unknown issuer"),
    "another audience": (lambda i: i.token(aud="billing"), "another audience"),
    "other audiences": (lambda i: i.token(aud=["billing", "understudy2"]), "another audience"),
    "no audience": (lambda i: i.token(aud=None), "another audience"),
    "expired": (lambda i: i.token(exp=int(time.time()) - 31), "expired"),
    "no end": (lambda i: i.token(exp=None), "without an end"),
    "not yet": (lambda i: i.token(nbf=int(time.time()) + 60), "not good yet"),
    "an end in milliseconds": (lambda i: i.token(exp=int(time.time() * 1000)), "wrong exp"),
    "an end that is a boolean": (lambda i: altered_signed(i, exp=True), "wrong exp"),
    "nobody": (lambda i: i.token(sub=None), "names no principal"),
    "a name without end": (lambda i: i.token(sub="x" * 300), "names no principal"),
    "oversized": (lambda i: i.token(filler="x" * MAX_TOKEN_BYTES), "this is not a token"),
    "four parts": (lambda i: i.token() + ".AA", "this is not a token"),
    "no JSON": (lambda i: "QUJD.QUJD.QUJD", "this is not a token"),
    "deep": (
        lambda i: f"{base64.urlsafe_b64encode(b'[' * 3000).decode()}.{part(i.claims())}.AA",
        "this is not a token",
    ),
}


def altered_signed(issuer: TokenIssuer, **claims: object) -> str:
    """Signed claims that `jwt.encode` would refuse to write."""
    key = issuer.keys[0]
    said = f"{part({'alg': 'RS256', 'kid': key.kid})}.{part({**issuer.claims(), **claims})}"
    from jwt.algorithms import RSAAlgorithm

    algorithm = RSAAlgorithm(RSAAlgorithm.SHA256)
    signature = algorithm.sign(said.encode(), key.private)
    return f"{said}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


@pytest.mark.parametrize("kind", FORGED)
def test_no_forged_token_counts(issuer: TokenIssuer, kind: str) -> None:
    forge, reason = FORGED[kind]
    assert reason in judged(issuer, forge(issuer))


def test_a_token_of_each_kind_of_key_counts(issuer: TokenIssuer) -> None:
    edwards = SigningKey("edwards", "EdDSA")
    issuer.keys.append(edwards)
    more = 'algorithms = ["RS256", "ES256", "EdDSA"]'
    assert [judged(issuer, issuer.token(key=key), more=more) for key in issuer.keys] == ["corp:alice"] * 3
    assert "not accepted" in judged(issuer, issuer.token(key=edwards))
    issuer.keys.remove(edwards)


@given(st.integers(-200, 200), st.integers(-200, 200))
@settings(max_examples=40)
def test_clocks_may_differ_by_the_leeway_and_no_more(issuer: TokenIssuer, exp: int, nbf: int) -> None:
    now = 1_900_000_000
    token = issuer.token(exp=now + exp, nbf=now + nbf, key=issuer.keys[1])
    found = judged(issuer, token, now)
    assert (found == "corp:alice") == (exp + 30 > 0 and nbf - 30 <= 0)


@given(st.integers(0, 2000), st.sampled_from("abAB01_-"))
@settings(max_examples=60)
def test_no_character_of_a_token_can_be_another(issuer: TokenIssuer, place: int, character: str) -> None:
    token = issuer.token(key=issuer.keys[1], exp=2_000_000_000)
    at = place % len(token)
    changed = token[:at] + character + token[at + 1 :]
    same_bits = at == len(token) - 1 or token[at + 1 : at + 2] == "."  # the last characters have bits that say nothing
    if changed != token and not same_bits:
        assert judged(issuer, changed, 1_900_000_000) != "corp:alice"


@given(st.binary(max_size=60), st.binary(max_size=60))
@settings(max_examples=60)
def test_no_bytes_do_more_than_be_refused(issuer: TokenIssuer, head: bytes, payload: bytes) -> None:
    sent = b".".join(base64.urlsafe_b64encode(each).rstrip(b"=") or b"AA" for each in (head, payload, b"x"))
    assert judged(issuer, sent) != "corp:alice"


# ---- what claims grant

GRANTS = 'grants = [{stores = ["balances"], actions = ["point"], key_prefix_claims = ["tenant"]}]'


def principal(issuer: TokenIssuer, more: str = GRANTS, **claims: object) -> Any:
    found = trusted(issuer, more).principal_of(issuer.claims(**claims))
    assert found is not None
    return found


def test_a_claim_gives_the_prefix_of_the_keys_that_a_user_may_read(issuer: TokenIssuer) -> None:
    scope = principal(issuer, tenant="t-7").keys_of("balances", Action.POINT)
    assert scope.allows({"tenant": "t-7", "id": 1})
    assert not scope.allows({"tenant": "t-8", "id": 1})
    assert not scope.allows({"tenant": "t-70", "id": 1})
    number = principal(issuer, tenant=7).keys_of("balances", Action.POINT)
    assert number.allows({"tenant": 7})
    assert not number.allows({"tenant": "7"})
    unfit: list[object] = [None, 1.5, ["t-7"], {}, 2**64, "x" * 300, "\ud800"]
    for tenant in unfit:
        assert principal(issuer, tenant=tenant).keys_of("balances", Action.POINT) is None


# ---- files


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('keys_url = "http://127.0.0.1', 'keys_url = "http://login.example'), "not https"),
        (('keys_url = "http://', 'keys_url = "ftp://'), "not https"),
        (('keys_url = "http://', 'keys_url = "http://user:pass@'), "without a login"),
        (('keys_url = "http://', 'keys_file = "/k"\nkeys_url = "http://'), "keys_url or from keys_file"),
        (('["reader"]', '["raeder"]'), "no role 'raeder'"),
        (('roles_claim = "groups"', ""), "no roles_claim"),
        (('roles_claim = "groups"', 'roles_claim = "groups"\nalgorithms = ["HS256"]'), "another form"),
        (('roles_claim = "groups"', 'roles_claim = "groups"\nalgorithms = ["none"]'), "another form"),
        (('roles_claim = "groups"', 'roles_claim = "groups"\nleeway_s = 3600'), "another form"),
        (('audience = ["understudy"]', "audience = []"), "another form"),
    ],
)
def test_an_issuer_that_may_be_a_mistake_is_refused(issuer: TokenIssuer, change: tuple[str, str], said: str) -> None:
    text = issuer.in_toml()
    assert change[0] in text
    with pytest.raises(CredentialsError, match=said):
        parse_credentials(text.replace(*change).encode())
    with pytest.raises(CredentialsError, match="one name in their tokens"):
        parse_credentials((text + issuer.in_toml("again")).encode())


# ---- key sets


def test_keys_that_are_for_something_else_or_too_weak_are_left_out(issuer: TokenIssuer) -> None:
    good = issuer.keys[0].jwk
    weak = SigningKey("weak", bits=1024).jwk
    others = [
        {**good, "kid": "enc", "use": "enc"},
        {**good, "kid": "sign", "key_ops": ["sign"]},
        {**good, "kid": 7},
        {**good, "kid": "broken", "n": "!"},
        {**good, "kid": "other", "alg": "HS256"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA", "kid": "curve"},
        weak,
        "no object",
    ]
    found = parse_key_set(json.dumps({"keys": [good, *others]}).encode())
    assert list(found) == ["first"]
    pinned = parse_key_set(json.dumps({"keys": [{**good, "alg": "PS256"}]}).encode())
    assert pinned["first"].algorithms == {"PS256"}


@given(st.lists(st.tuples(st.floats(0, 500), st.booleans()), max_size=60))
def test_an_issuer_is_asked_no_oftener_than_the_cool_down_and_its_keys_do_not_last_for_ever(
    steps: list[tuple[float, bool]],
) -> None:
    age, now_s, asked = KeySetAge(), 0.0, []
    for gap_s, is_answered in steps:
        now_s += gap_s
        if age.may_ask(now_s):
            age.asked(now_s)
            asked.append(now_s)
            if is_answered:
                age.read(now_s)
                assert not age.is_too_old(now_s + MAX_AGE_S - 1)
                assert age.is_too_old(now_s + MAX_AGE_S + 1)
    assert all(later - earlier >= COOL_DOWN_S for earlier, later in pairwise(asked))
