"""Log lines: one line per record, whatever is in it, and the extra fields are there in both formats."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.telemetry.logs import JsonFormatter, TextLines, configure_logging


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
