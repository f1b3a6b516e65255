"""The flags of services are the services' settings: same names, same defaults, and only given ones count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import BaseSettings
from tests.support.services.command_line import ask

from understudy.services.running import use_config_file
from understudy.services.settings import NODE_FLAGS, ROUTER_FLAGS, SERVE_FLAGS, Flag, given_settings, settings_error
from understudy.terminal.exits import ExitCode
from understudy_node.settings import ClusterNodeSettings, NodeSettings
from understudy_router.settings import RouterSettings

NOTHING_GIVEN = dict.fromkeys((flag.name for flag in SERVE_FLAGS), None)
DERIVED = {"application_id", "data_dir", "node_id", "router_id", "advertise_host", "memory_limit_bytes"}
UNSET = ("", None)

SERVICES = pytest.mark.parametrize(
    ("command", "table", "settings"),
    [
        ("serve", SERVE_FLAGS, NodeSettings),
        ("node", NODE_FLAGS, ClusterNodeSettings),
        ("router", ROUTER_FLAGS, RouterSettings),
    ],
    ids=["serve", "node", "router"],
)


@SERVICES
def test_every_setting_is_a_flag_with_the_services_default(
    command: str, table: Sequence[Flag], settings: type[BaseSettings]
) -> None:
    fields = {name: field for name, field in settings.model_fields.items() if name not in {"checkpoint", "checkpoints"}}
    assert {flag.name for flag in table} == set(fields)
    for flag in table:
        field = fields[flag.name]
        assert flag.is_required == field.is_required(), flag.name
        if not flag.is_required and not (flag.name in DERIVED and field.default in UNSET):
            assert flag.default == (None if field.default in UNSET else field.default), flag.name


@SERVICES
@pytest.mark.filterwarnings("ignore:cache_max_bytes_buffering is deprecated")
def test_every_setting_that_takes_a_size_with_a_unit_has_a_flag_that_does(
    command: str, table: Sequence[Flag], settings: type[BaseSettings]
) -> None:
    for flag in table:
        given: dict[str, Any] = {"checkpoint": "/c", "redis": "r", "application_id": "a", flag.name: "512KiB"}
        try:
            size = getattr(
                settings(**{name: value for name, value in given.items() if name in settings.model_fields}), flag.name
            )
        except ValueError:
            size = None
        assert size != 512 << 10 or flag.kind == "size", flag.name


def test_flags_win_over_variables_and_variables_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('checkpoint = "/from/file"\nport = 1\nworkers = 4\nlag_refresh_ms = 7\n')
    monkeypatch.setenv("UNDERSTUDY_CONFIG", "")
    monkeypatch.setenv("UNDERSTUDY_PORT", "2")
    monkeypatch.setenv("UNDERSTUDY_WORKERS", "5")
    monkeypatch.setenv("UNDERSTUDY_URL", "http://a-setting-of-the-client:1")
    use_config_file(file)
    given = given_settings(SERVE_FLAGS, {**NOTHING_GIVEN, "port": 3, "overlay_max_bytes": "1MiB"})
    assert given == {"port": 3, "overlay_max_bytes": 1 << 20}
    settings = NodeSettings(**given)
    assert (settings.checkpoint, settings.port, settings.workers, settings.lag_refresh_ms) == ("/from/file", 3, 5, 7)
    assert settings.overlay_max_bytes == 1 << 20


def test_every_wrong_setting_is_reported_at_once_with_where_it_may_come_from() -> None:
    with pytest.raises(ValueError, match="validation") as caught:
        NodeSettings(port=99_999, workers=1, nonsense=1)  # type: ignore[call-arg]
    error = settings_error(caught.value, command="serve")  # type: ignore[arg-type]
    problems = [error.what, *error.notes]
    assert error.exit_code is ExitCode.USAGE
    assert len(problems) == 4
    assert any("checkpoint: it was not given (CHECKPOINT" in text for text in problems)
    assert any("port=99999" in text and "--port, UNDERSTUDY_PORT" in text for text in problems)
    assert any("workers=1" in text for text in problems)
    assert any("nonsense: there is no such setting" in text for text in problems)


def test_a_line_of_the_file_that_is_no_setting_is_refused_with_what_was_probably_meant(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('checkpoint = "/nowhere"\nworker = 4\n')
    done = ask("serve", "--config", str(file))
    assert done.returncode == ExitCode.USAGE
    assert "worker: there is no such setting. Did you mean 'workers'?" in done.stderr
