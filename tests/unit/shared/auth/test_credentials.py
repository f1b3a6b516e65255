"""The file of credentials: what it may say, and its changes."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.services.guarded import peer_key

from understudy_shared.auth.cluster_secret import ClusterIdentity, parse_cluster_secrets
from understudy_shared.auth.credentials import CredentialsError, add_key, parse_credentials, revoke_key, stored_keys
from understudy_shared.auth.presented import new_key
from understudy_shared.auth.principals import Action
from understudy_shared.base.files import WatchedFile

SHA = "ab" * 32
ID = "0123456789abcdef"
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
        (key(key_id="short"), "another form"),
        (key().replace(SHA, "ab"), "another form"),
        (key(more='password = "hunter2"'), "another form"),
        (key(more="expires_at = 2027-01-01T00:00:00"), "another form"),
        ('[roles.reader]\ngrants = []\n', "built in"),
        ('[roles.a]\ngrants = [{stores = ["s"], actions = ["admin"]}]', "of the whole service"),
        ('[roles.a]\ngrants = [{stores = ["s", "*"], actions = ["monitor"]}]', "of the whole service"),
        ('[roles.a]\ngrants = [{stores = [], actions = ["point"]}]', "another form"),
        ('[roles.a]\ngrants = [{stores = ["s"], actions = ["write"]}]', "another form"),
        (MONITORING, "for the actions point, scan, export and watch only"),
        ('[roles.a]\ngrants = [{stores = ["s"], actions = ["point"], key_prefix = [1e400]}]', "another form"),
        ('[roles.a]\ngrants = [{stores = ["s"], actions = ["point"], key_prefix = [-9223372036854775809]}]', "form"),
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


NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
OPERATORS = """# ours

[roles.support]   # second line
grants = [
  {stores = ["a"], actions = ["point"]},
]
"""
OLD, NEW = b"o" * 32, b"n" * 32


# ---- a file that is watched


def test_a_changed_file_counts_and_an_unchanged_one_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(OLD)
    parsed: list[bytes] = []

    def parse(data: bytes) -> bytes:
        parsed.append(data)
        return data

    file = WatchedFile(path, parse)
    assert not file.look()
    path.write_bytes(NEW + b"\n")
    assert file.look()
    assert not file.look()
    assert (file.value, parsed) == (NEW + b"\n", [OLD, NEW + b"\n"])


def test_a_file_that_is_exchanged_for_another_counts_although_it_looks_the_same(tmp_path: Path) -> None:
    path, other = tmp_path / "secret", tmp_path / "other"
    path.write_bytes(OLD)
    file = WatchedFile(path, bytes)
    other.write_bytes(NEW)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    assert file.look()
    assert file.value == NEW


@pytest.mark.parametrize("broken", [b"[[keys]]\nid = 7", b"\xff", None], ids=["form", "bytes", "gone"])
def test_a_broken_file_keeps_the_old_one_and_says_so_until_it_is_mended(
    tmp_path: Path, broken: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path, key = tmp_path / "credentials.toml", new_key()
    add_key(path, key, principal="p", roles=["reader"], now=NOW, expires_at=None)
    good = path.read_bytes()
    file = WatchedFile(path, parse_credentials)
    if broken is None:
        path.unlink()
    else:
        path.write_bytes(broken)
    assert [file.look(), file.look()] == [False, False]
    assert set(file.value.keys) == {key.key_id}
    assert file.refused is not None
    assert str(path) in file.refused
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    path.write_bytes(good)
    assert file.look()
    assert file.refused is None


# ---- the cluster's secret


def test_two_secrets_live_at_once_so_that_one_can_replace_the_other(tmp_path: Path) -> None:
    """Every step of a rotation: whatever service has made it already, its peers know it."""
    steps = [OLD, OLD + b"\n" + NEW, NEW + b"\n" + OLD, NEW]
    paths = [tmp_path / str(number) for number in range(len(steps))]
    for path, secrets in zip(paths, steps, strict=True):
        path.write_bytes(secrets + b"\n")
    services = [ClusterIdentity(WatchedFile(path, parse_cluster_secrets), "flights") for path in paths]
    for ahead, behind in zip(services[1:], services, strict=False):
        for one, other in ((ahead, behind), (behind, ahead)):
            shown = peer_key(one)
            assert any(key.key_id in shown for key in other.keys.values())


def test_the_secret_itself_is_never_shown_and_each_application_has_a_key_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(OLD)
    file = WatchedFile(path, parse_cluster_secrets)
    flights, trains = ClusterIdentity(file, "flights"), ClusterIdentity(file, "trains")
    assert OLD not in flights.header
    assert flights.header != trains.header
    assert not set(flights.keys) & set(trains.keys)
    assert ClusterIdentity(None, "flights").header == b"understudy-application: flights\r\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "no secret"), (b"\n \n", "no secret"), (b"short", "5 characters"), (b"\n".join([OLD] * 3), "3 secrets")],
)
def test_a_secret_that_can_be_guessed_is_refused_and_not_repeated(data: bytes, said: str) -> None:
    with pytest.raises(CredentialsError, match=said) as caught:
        parse_cluster_secrets(data)
    assert "short" not in str(caught.value)


# ---- keys that are written


def test_a_key_is_added_to_what_the_operator_wrote_and_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    path, first, second = tmp_path / "credentials.toml", new_key(), new_key()
    path.write_text(OPERATORS)
    path.chmod(0o644)
    add_key(path, first, principal='the "board"\x7f', roles=["support", "reader"], now=NOW, expires_at=NOW)
    add_key(path, second, principal="p", roles=["reader"], now=NOW, expires_at=None)
    assert path.read_text().startswith(OPERATORS)
    assert first.text not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [(key.id, key.principal, key.expires_at) for key in stored_keys(path)] == [
        (first.key_id, 'the "board"\x7f', NOW),
        (second.key_id, "p", None),
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_a_revoked_key_is_cut_out_and_everything_else_stays(tmp_path: Path) -> None:
    path, keys = tmp_path / "credentials.toml", [new_key() for _ in range(3)]
    path.write_text(OPERATORS)
    for key in keys:
        add_key(path, key, principal="p", roles=["support"], now=NOW, expires_at=None)
    marked = path.read_text().replace(
        f'[[keys]]\nid = "{keys[2].key_id}"', f'# the last\n[[keys]]\nid = "{keys[2].key_id}"'
    )
    path.write_text(marked)
    revoke_key(path, keys[1].key_id)
    assert [key.id for key in stored_keys(path)] == [keys[0].key_id, keys[2].key_id]
    assert path.read_text().startswith(OPERATORS)
    assert f'# the last\n[[keys]]\nid = "{keys[2].key_id}"' in path.read_text()
    with pytest.raises(CredentialsError, match="there is no key"):
        revoke_key(path, keys[1].key_id)
