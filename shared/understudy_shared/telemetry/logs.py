"""Logging as text or JSON lines on stderr, with each record's `extra` fields (`action` and ids) in it.

The process that starts a service configures logging, once; libraries and services only log. A record is always one
line, so no text in a message can look like another record. Logins in URLs are masked in every record.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TextIO

from understudy_shared.base.masking import masked_text
from understudy_shared.base.texts import printable
from understudy_shared.base.throttles import LogThrottle

LogFormat = Literal["text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""Attributes that every record has. All others are from `extra`."""

_QUIET = ("uvicorn", "httpx", "httpcore")
"""Libraries that log every request or phase at INFO: only their warnings matter here."""


_NAMES: ContextVar[Mapping[str, object]] = ContextVar("names", default={})  # noqa: B039  # never changed
"""Extra fields for records of this context, and of contexts that are started from it."""


def configure_logging(*, log_format: LogFormat = "text", level: str = "INFO") -> None:
    """Send every record of `level` and above to stderr; Python's warnings too, as records."""
    handler = _StderrHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    warnings.showwarning = _log_warning


def name_records(**fields: object) -> None:
    """Add `fields` to every record that this process writes, for example the number of a worker, the name of a router.

    Call this after `configure_logging`, because the fields belong to its handler.
    """
    for handler in _handlers():
        handler.names.update(fields)


def name_records_here(**fields: object) -> None:
    """Add `fields` to every record of this task or thread, and of tasks that it starts: in a fleet, the application."""
    _NAMES.set({**_NAMES.get(), **fields})


def _handlers() -> list[_StderrHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _StderrHandler)]


class TextLines(logging.Formatter):
    """A formatter of text lines: `2026-11-20T11:00:03.120Z WARNING idle: no commit for a while action=idle`."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_moment(record)} {record.levelname} {printable(record.getMessage())}"
        text += "".join(f" {name}={_field(value)}" for name, value in extra_fields(record).items())
        trace = _trace(self, record)
        return masked_text(f"{text} exception={_quoted(trace)}" if trace else text)


class JsonFormatter(logging.Formatter):
    """A formatter of one JSON object per record: `at`, `level`, `logger`, `message`, the extra fields, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _moment(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **extra_fields(record),
        }
        if trace := _trace(self, record):
            line["exception"] = trace
        return masked_text(json.dumps(line, default=str, ensure_ascii=False))


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that the caller passed as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class _StderrHandler(logging.Handler):
    """The handler that writes to the current `sys.stderr`, which a progress display replaces to keep records out of its
    output.

    A bug that occurs in every request is logged once a minute, with the number of skipped records.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, object] = {}
        self._throttle = LogThrottle()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if record.exc_info and record.exc_info[0] is not None:
                bug = (record.name, record.getMessage(), record.exc_info[0], str(record.exc_info[1]))
                left_out = self._throttle.admit(bug, time.monotonic() * 1000)
                if left_out is None:
                    return
                record.__dict__.update(left_out)
            names = {**self.names, **_NAMES.get()}
            named = logging.makeLogRecord({**names, **vars(record)}) if names else record
            sys.stderr.write(self.format(named) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _field(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else _quoted(text)


def _quoted(text: str) -> str:
    return printable(json.dumps(text, ensure_ascii=False))


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _log_warning(  # noqa: PLR0917  # the signature of `warnings.showwarning`
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Log a Python warning in place of `warnings.showwarning`: the place in the code does not help with a setting."""
    logging.getLogger("py.warnings").warning(
        "%s", message, extra={"action": "warning", "category": category.__name__, "place": f"{filename}:{lineno}"}
    )
