"""`understudy applications`: the worst first, and a file that is changed without losing a word of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.services.canned_server import Canned
from tests.support.services.reading_commands import run

from understudy.commands.group import cli
from understudy.terminal.exits import ExitCode
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


def test_a_file_that_is_not_there_is_made(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    assert edited(path, "add", "orders", "/data/orders").exit_code == 0
    assert [each.id for each in parse_applications(path.read_bytes())] == ["orders"]
    assert edited(path, "remove", "orders").exit_code == 0
    assert parse_applications(path.read_bytes()) == ()


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


def test_one_that_announced_itself_is_let_go_by_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FILE)
    monkeypatch.setenv("UNDERSTUDY_APPLICATIONS", str(path))
    said = {"application": "a b", "let_go": True}
    result, asked = run(["applications", "remove", "a b", "--json"], [Canned(json.dumps(said).encode(), 202)])
    assert asked == [("DELETE /admin/v1/applications/a%20b", b"")]
    assert json.loads(result.stdout) == said
    assert path.read_text() == FILE


@pytest.mark.parametrize("text", ['applications = [{id = "a", checkpoint = "/a"}]\n', "[[applications\n"])
def test_what_cannot_be_cut_out_is_left(tmp_path: Path, text: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    assert edited(path, "remove", "a").exit_code == ExitCode.USAGE
    assert path.read_text() == text


def test_the_list_shows_the_worst_first() -> None:
    def one(name: str, state: str, lag: int | None, reason: str | None = None) -> dict[str, object]:
        return {"application": name, "state": state, "max_offset_lag": lag, "reason": reason, "stores": ["a", "b"]}

    told = [
        one("well", "serving", 0),
        one("slow", "serving", 9),
        one("odd", "serving", None),
        one("gone", "failed", 1, "no"),
    ]
    body = json.dumps({"applications": told}).encode()
    result, asked = run(["applications", "list"], [Canned(body)])
    assert asked == [("GET /v1/applications", b"")]
    assert [line.split()[0] for line in result.stdout.splitlines()[2:6]] == ["gone", "odd", "slow", "well"]
    result, asked = run(["applications", "show", "a b", "--application", "c"], [Canned(json.dumps(told[3]).encode())])
    assert asked == [("GET /v1/applications/a%20b", b"")]
    assert "failed" in result.stdout
