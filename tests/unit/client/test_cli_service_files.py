"""`understudy applications` and `understudy keys`: a file is changed without losing a word of it; digests are written,
and a key is shown once; commands send the key of the environment, and no other.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from tests.support.services.canned_server import Canned, canned_server

from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode
from understudy_shared.auth.credentials import parse_credentials
from understudy_shared.auth.presented import KEY, presented_in
from understudy_shared.fleet.applications_file import parse_applications

FILE = """# Of the platform team.
[[applications]]
id = "orders"  # the oldest
checkpoint = "/data/orders"

# Asked for by marketing.
[[applications]]
id = "clicks"
checkpoint = "/data/clicks"
"""


def edited(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["applications", *arguments, "--file", str(path)])


def test_an_application_comes_and_goes_and_all_else_stays_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    path.chmod(0o640)
    assert edited(path, "add", "späte", "s3://bucket/späte", "--standbys", "0").exit_code == 0
    assert path.read_text().startswith(FILE)
    specs = parse_applications(path.read_bytes())
    assert [(each.id, each.num_standby_replicas) for each in specs] == [
        ("orders", None),
        ("clicks", None),
        ("späte", 0),
    ]
    assert edited(path, "remove", "späte").exit_code == 0
    assert path.read_text().rstrip() == FILE.rstrip()
    assert edited(path, "remove", "clicks").exit_code == 0
    assert "marketing" not in path.read_text()
    assert [each.id for each in parse_applications(path.read_bytes())] == ["orders"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["fleet.toml"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "orders", "/data/other"), "two applications have the id"),
        (("add", "again", "/data/./orders/"), "one checkpoint"),
        (("add", "a/b", "/data/ab"), "cannot be the id"),
        (("remove", "order"), "orders"),
    ],
)
def test_a_change_that_services_would_refuse_is_not_written(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    result = edited(path, *arguments)
    assert (result.exit_code, path.read_text()) == (ExitCode.USAGE, FILE)
    assert says in result.stderr


STORES = Canned(b'{"stores": [], "not_served": []}')
SHOWN = "usk_" + "0" * 16 + "_" + "A" * 43


def keys(*arguments: str, file: Path) -> Result:
    return CliRunner().invoke(cli, ["keys", *arguments, "--credentials-file", str(file)])


# ---- making keys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "credentials.toml"


def test_a_new_key_is_shown_once_and_its_digest_kept(file: Path) -> None:
    made = keys("new", "dashboard", "--role", "reader", "--expires-in", "90d", file=file)
    assert made.exit_code == 0, made.stderr
    text = made.stdout.strip()
    assert KEY.fullmatch(text)
    assert text not in made.stderr
    assert text not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (stored,) = parse_credentials(file.read_bytes()).keys.values()
    presented = presented_in([(b"authorization", f"Bearer {text}".encode())])
    assert presented is not None
    assert presented.proves(stored)
    assert stored.principal.name == "dashboard"
    assert stored.expires_s < float("inf")


def test_a_key_goes_into_a_new_file_that_only_its_owner_may_read(file: Path, tmp_path: Path) -> None:
    output = tmp_path / "prometheus.key"
    before = os.umask(0)
    try:
        made = keys("new", "prometheus", "--role", "monitor", "--output", str(output), file=file)
        again = keys("new", "prometheus", "--role", "monitor", "--output", str(output), file=file)
        wrong = keys("new", "x", "--role", "captain", "--output", str(tmp_path / "x.key"), file=file)
    finally:
        os.umask(before)
    assert (made.exit_code, made.stdout) == (0, "")
    assert KEY.fullmatch(output.read_text().strip())
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert again.exit_code == wrong.exit_code == ExitCode.USAGE
    assert "Name a new file" in again.stderr
    assert not (tmp_path / "x.key").exists()
    assert len(parse_credentials(file.read_bytes()).keys) == 1


def test_keys_are_listed_without_what_proves_them_and_revoked_by_their_id(file: Path) -> None:
    first = json.loads(keys("new", "a\x1b[2J", "--role", "reader", "--json", file=file).stdout)
    second = json.loads(keys("new", "b", "--role", "admin", "--role", "reader", "--json", file=file).stdout)
    listed = keys("list", file=file)
    assert listed.exit_code == 0
    assert all(each["id"] in listed.stdout for each in (first, second))
    assert "admin, reader" in listed.stdout
    assert "\x1b" not in listed.stdout
    documents = [json.loads(line) for line in keys("list", "--json", file=file).stdout.splitlines()]
    assert [(each["id"], each["principal"]) for each in documents] == [(first["id"], "a\x1b[2J"), (second["id"], "b")]
    assert not any("sha256" in each or each["id"] in first["key"][20:] for each in documents)
    assert keys("revoke", first["id"], file=file).exit_code == 0
    assert set(parse_credentials(file.read_bytes()).keys) == {second["id"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["new", "p", "--role", "raeder"], "Did you mean 'reader'?"),
        (["new", "p"], "--role"),
        (["new", "p", "--role", "reader", "--expires-in", "soon"], "12h, 90d"),
        (["new", "p", "--role", "reader", "--expires-in", "0d"], "12h, 90d"),
        (["list"], "cannot be read"),
        (["revoke", "0123456789abcdef"], "cannot be read"),
    ],
)
def test_a_mistake_is_wrong_usage_and_writes_nothing(file: Path, arguments: Sequence[str], said: str) -> None:
    done = keys(*arguments, file=file)
    assert done.exit_code == ExitCode.USAGE
    assert said in done.stderr
    assert "usk_" not in done.stdout
    assert not file.exists()


# ---- sending one


def asked(arguments: Sequence[str], variables: Mapping[str, str], reply: Canned = STORES) -> tuple[Result, list[Any]]:
    empty = dict.fromkeys(("UNDERSTUDY_API_KEY", "UNDERSTUDY_API_KEY_FILE"))
    with canned_server([reply]) as served:
        result = CliRunner().invoke(cli, [*arguments, "--url", served.url], env={**empty, **variables})
    return result, served.shown


def test_commands_show_the_key_of_the_environment_or_of_the_file_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(SHOWN + "\n")
    for variables in ({"UNDERSTUDY_API_KEY": SHOWN}, {"UNDERSTUDY_API_KEY_FILE": str(file)}):
        result, shown = asked(["stores"], variables)
        assert (result.exit_code, shown) == (0, [f"Bearer {SHOWN}"]), result.stderr
        assert SHOWN not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"UNDERSTUDY_API_KEY": SHOWN, "UNDERSTUDY_API_KEY_FILE": "/nowhere"}, "both"),
        ({"UNDERSTUDY_API_KEY_FILE": "/nowhere/key"}, "/nowhere/key"),
        ({"UNDERSTUDY_API_KEY_FILE": "/dev/null"}, "is empty"),
        ({"UNDERSTUDY_API_KEY": "two words"}, "not a key"),
        ({"UNDERSTUDY_API_KEY": "a\r\nx-injected: 1"}, "not a key"),
        ({"UNDERSTUDY_API_KEY": "ké"}, "not a key"),
    ],
)
def test_a_key_that_cannot_be_sent_is_wrong_usage_and_is_not_repeated(variables: dict[str, str], said: str) -> None:
    result, shown = asked(["stores"], variables)
    assert (result.exit_code, shown) == (ExitCode.USAGE, [])
    assert said in result.stderr
    assert not any(value in result.stderr for name, value in variables.items() if name == "UNDERSTUDY_API_KEY")


def commands(group: click.Group) -> Iterator[click.Command]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


def test_no_command_takes_a_secret_as_an_argument() -> None:
    options = {option for command in commands(cli) for parameter in command.params for option in parameter.opts}
    secrets = {
        option for option in options if any(word in option for word in ("api-key", "secret", "token", "password"))
    }
    assert {option for option in secrets if not option.endswith("-file")} == set()
    assert "--cluster-secret-file" in secrets
