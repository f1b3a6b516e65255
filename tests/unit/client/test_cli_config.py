"""`understudy config` shows what a service would have, who set it, and no secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from understudy.commands.group import cli


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDERSTUDY_CONFIG", raising=False)


def run(*arguments: str, **environment: str | None) -> Result:
    return CliRunner(env={"UNDERSTUDY_CONFIG": None, **environment}).invoke(cli, ["config", *arguments])


def shown(result: Result) -> dict[str, tuple[object, str, str]]:
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["settings"]
    return {row["name"]: (row["value"], row["source"], row["where"]) for row in rows}


def test_a_flag_wins_over_a_variable_a_variable_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nhost = "::1"\nworkers = 4\nprot = 5\n')
    variables = {"UNDERSTUDY_PORT": "2", "understudy_host": "127.0.0.2", "UNDERSTUDY_WORKRES": "9"}
    result = run("serve", "/data/flights", "--port", "3", "--json", "--config", str(file), **variables)
    found = shown(result)
    assert found["checkpoint"] == ("/data/flights", "flag", "CHECKPOINT")
    assert found["port"] == (3, "flag", "--port")
    assert found["host"] == ("127.0.0.2", "variable", "understudy_host")
    assert found["workers"] == (4, "file", str(file))
    assert found["overlay_max_bytes"] == (64 * 1024 * 1024, "default", "")
    assert "the file has prot, which is not a setting. Did you mean 'port'?" in result.stderr
    assert "UNDERSTUDY_WORKRES is not a setting" in result.stderr


def test_passwords_are_masked_wherever_they_come_from() -> None:
    url = "redis://me:hush@bus:6379/0"
    for result in (
        run("node", "--redis", url),
        run("node", "--json", UNDERSTUDY_REDIS=url),
        run("node", "s3://key:hush@bucket/x"),
    ):
        assert result.exit_code == 0
        assert "hush" not in result.output
    assert "bus:6379" in run("router", "--changed", "--redis", url).stdout
