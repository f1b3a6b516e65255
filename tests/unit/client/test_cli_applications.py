"""`understudy applications`: the worst first, and a file that is changed without losing a word of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

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
