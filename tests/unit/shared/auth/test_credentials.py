"""The file of credentials: what stands in it is granted, and anything that might be a mistake is refused by name."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.auth.credentials import CredentialsError, parse_credentials
from understudy_shared.auth.principals import Action

SHA = "ab" * 32
ID, OTHER = "0123456789abcdef", "fedcba9876543210"
ROLE = '[roles.support]\ngrants = [{stores = ["aircraft"], actions = ["point", "scan"]}, '
ROLE += '{stores = ["balances"], actions = ["point"], key_prefix = ["t", 7, true]}]\n'
MONITORING = '[roles.a]\ngrants = [{stores = ["*"], actions = ["monitor"], key_prefix = ["t"]}]'


def key(*, key_id: str = ID, roles: str = '["reader"]', more: str = "") -> str:
    return f'[[keys]]\nid = "{key_id}"\nprincipal = "dashboard"\nroles = {roles}\nsha256 = "{SHA}"\n{more}\n'


def test_a_key_has_the_grants_of_all_its_roles() -> None:
    found = parse_credentials((ROLE + key(roles='["support", "monitor"]')).encode()).keys
    principal = found[ID].principal
    assert principal.name == "dashboard"
    assert principal.may(Action.MONITOR)
    assert not principal.may(Action.ADMIN)
    assert principal.keys_of("aircraft", Action.SCAN) is not None
    assert principal.keys_of("aircraft", Action.WATCH) is None
    balances = principal.keys_of("balances", Action.POINT)
    assert balances is not None
    assert balances.allows({"tenant": "t", "n": 7, "b": True, "id": "x"})
    assert not balances.allows({"tenant": "t", "n": 7, "b": False})
    assert principal.keys_of("elsewhere", Action.POINT) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys = 7", "another form"),
        ("not toml", "not TOML"),
        ("\udcff", "not TOML"),
        (key() + key(), "two keys have one id"),
        (key(roles='["raeder"]'), "no role 'raeder'"),
        (key(roles="[]"), "another form"),
        (key(key_id="short"), "another form"),
        (key().replace(SHA, "ab"), "another form"),
        (key(more='password = "hunter2"'), "another form"),
        (key(more="expires_at = 2027-01-01T00:00:00"), "another form"),
        ('[roles.reader]\ngrants = []\n', "built in"),
        ('[roles.a]\ngrants = [{stores = ["s"], actions = ["admin"]}]', "of the whole service"),
        ('[roles.a]\ngrants = [{stores = ["s", "*"], actions = ["monitor"]}]', "of the whole service"),
        ('[roles.a]\ngrants = [{stores = [], actions = ["point"]}]', "another form"),
        ('[roles.a]\ngrants = [{stores = ["s"], actions = []}]', "another form"),
        ('[roles.a]\ngrants = [{stores = ["s"], actions = ["write"]}]', "another form"),
        (MONITORING, "for the actions point, scan, export and watch only"),
        ('[roles.a]\ngrants = [{stores = ["s"], actions = ["point"], key_prefix = [1e400]}]', "another form"),
        ('[roles.a]\ngrants = [{stores = ["s"], actions = ["point"], key_prefix = [-9223372036854775809]}]', "form"),
        ('[roles.a]\ngrants = [{stores = ["s"], actions = ["point"], key_prefix = [{a = 1}]}]', "another form"),
    ],
)  # fmt: skip
def test_what_may_be_a_mistake_is_refused_and_nothing_of_the_file_counts(text: str, said: str) -> None:
    with pytest.raises(CredentialsError) as caught:
        parse_credentials(text.encode("utf-8", "surrogateescape"))
    assert said in str(caught.value)
    assert caught.value.fix


def test_an_error_repeats_nothing_that_stands_where_a_digest_belongs() -> None:
    with pytest.raises(CredentialsError) as caught:
        parse_credentials(key().replace(SHA, "usk_the-key-itself").encode())
    assert "usk_the-key-itself" not in str(caught.value)


@given(st.binary(max_size=200) | st.text(st.sampled_from('[]{}="keysrolesgrants\n.1'), max_size=80).map(str.encode))
def test_no_file_does_more_than_be_refused(data: bytes) -> None:
    with suppress(CredentialsError):
        parse_credentials(data)
