"""The flags of services are the services' settings: same names, same defaults, and only given ones count. Log lines are
one per record, whatever is in it, and the extra fields are there in both formats.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_settings import BaseSettings
from tests.support.services.command_line import ask

from understudy.services.settings import NODE_FLAGS, ROUTER_FLAGS, SERVE_FLAGS, Flag, settings_error
from understudy.terminal.exits import ExitCode
from understudy_node.settings import ClusterNodeSettings, NodeSettings
from understudy_router.settings import RouterSettings
from understudy_shared.telemetry.logs import JsonFormatter, TextLines, configure_logging

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


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Logging is the process's: leave it as it was."""
    root = logging.getLogger()
    handlers, level, show = list(root.handlers), root.level, warnings.showwarning
    quiet = {name: logging.getLogger(name).level for name in ("uvicorn", "httpx", "httpcore")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    warnings.showwarning = show
    for name, its_level in quiet.items():
        logging.getLogger(name).setLevel(its_level)


def _record(message: str, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("understudy_node.node", logging.WARNING, __file__, 1, message, (), None)
    record.created = 1_700_000_000.25
    vars(record).update(extra)
    return record


def test_a_json_line_has_the_extra_fields_as_members_and_the_exception_as_text() -> None:
    try:
        raise ValueError("no\nway")
    except ValueError:
        record = _record("failed", action="worker-failed")
        record.exc_info = sys.exc_info()
    line = json.loads(JsonFormatter().format(record))
    trace = line.pop("exception")
    assert line == {
        "at": "2023-11-14T22:13:20.250Z",
        "level": "WARNING",
        "logger": "understudy_node.node",
        "message": "failed",
        "action": "worker-failed",
    }
    assert "ValueError: no\nway" in trace


@given(st.text(), st.text())
def test_a_record_is_one_printable_line_whatever_is_in_it(message: str, field: str) -> None:
    assert TextLines().format(_record(message.replace("%", ""), action=field)).isprintable()
    assert len(JsonFormatter().format(_record(message.replace("%", ""), action=field)).split("\n")) == 1


def test_a_bug_that_every_request_meets_is_written_once_and_another_one_beside_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("understudy_shared.telemetry.logs.time.monotonic", lambda: now_s[0])
    configure_logging(log_format="json")
    log = logging.getLogger("understudy_shared.http.edge")

    def met(error: Exception) -> None:
        log.error("a request failed unexpectedly", exc_info=error, extra={"action": "request-bug"})

    for _ in range(5):
        met(ZeroDivisionError("a"))
    met(ZeroDivisionError("b"))
    for _ in range(2):
        log.warning("Redis is away", extra={"action": "bus-lost"})
    now_s[0] = 60.0
    met(ZeroDivisionError("a"))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["action"], line.get("left_out")) for line in lines] == [
        ("request-bug", None),
        ("request-bug", None),
        ("bus-lost", None),
        ("bus-lost", None),
        ("request-bug", 4),
    ]
