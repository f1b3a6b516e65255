"""Log lines: one line per record, whatever is in it, and the extra fields are there in both formats."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.fleet.lifespans import Lifespan
from understudy_shared.telemetry.logs import JsonFormatter, LogFormat, TextLines, configure_logging, name_records


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


def test_a_text_line_has_time_level_message_and_the_extra_fields() -> None:
    line = TextLines().format(_record("idle: no commit", action="idle", task="a b/0_1"))
    assert line == '2023-11-14T22:13:20.250Z WARNING idle: no commit action=idle task="a b/0_1"'


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


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_records_go_to_what_stderr_is_at_that_moment(log_format: LogFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logging(log_format=log_format, level="INFO")
    replaced = io.StringIO()
    monkeypatch.setattr(sys, "stderr", replaced)
    logging.getLogger("understudy_node").info("seen")
    logging.getLogger("understudy_node").debug("not seen")
    logging.getLogger("uvicorn.error").info("not seen either")
    logging.getLogger("uvicorn.error").warning("seen too")
    assert [("seen" in line, "not" in line) for line in replaced.getvalue().splitlines()] == [(True, False)] * 2


def test_a_warning_becomes_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning("use the new name", DeprecationWarning, "settings.py", 7)
    assert "WARNING use the new name action=warning category=DeprecationWarning" in capsys.readouterr().err


def test_the_names_of_a_process_are_in_its_records_until_logging_is_configured_anew(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = logging.getLogger("understudy_router.router")
    for names in ({"worker": 1, "router_id": "east"}, {}):
        configure_logging()
        name_records(**names)
        log.warning("leaving", extra={"action": "leaving"})
    named, anew = capsys.readouterr().err.splitlines()
    assert named.endswith(" WARNING leaving worker=1 router_id=east action=leaving")
    assert anew.endswith(" WARNING leaving action=leaving")


async def test_an_application_is_named_in_the_records_of_its_tasks_and_of_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def says(
        scope: object, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        await receive()
        await asyncio.to_thread(log.warning, "the bus is away")
        await send({"type": "lifespan.startup.complete"})

    log = logging.getLogger("understudy_shared.bus")
    configure_logging()
    for name in ("orders", "clicks"):
        await Lifespan(says, name).start()
    log.warning("leaving")
    said = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == [
        "WARNING the bus is away application=orders",
        "WARNING the bus is away application=clicks",
        "WARNING leaving",
    ]


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
        log.warning("the bus is away", extra={"action": "bus-lost"})
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
