"""Writes poison records aside: one JSON lines file for each range that has any. Deterministic on replay.

Keys and values are base64, because they may hold any bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import quote

import orjson
import pyarrow as pa

from understudy_aligned.inputs.protocol import Range
from understudy_shared.base.errors import UnderstudyError

_NAME_CHARS = 100
"""Longest topic in a file name. A longer one is cut, and a digest keeps it unique."""


class DeadLetterError(UnderstudyError):
    """Poison records cannot be written. The batch fails: it must not go on without them."""


def write_dead_letters(folder: Path, span: Range, poison: pa.RecordBatch) -> Path:
    """Write the poison records (`ROW_SCHEMA`) of a range, whole or not at all. Raises DeadLetterError.

    A replayed range replaces its own file. Ranges of a partition do not overlap, so no record is written twice. The
    folder must be there (`load()` makes it): an executor on another machine must not make one of its own.
    """
    path = folder / f"{_safe(span.partition.topic)}-{span.partition.partition}-{span.start.ordinal:020d}.jsonl"
    lines = b"".join(orjson.dumps(_letter(span, row)) + b"\n" for row in poison.to_pylist())
    try:
        descriptor, draft = tempfile.mkstemp(prefix=".", suffix=".draft", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            Path(draft).replace(path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as refusal:
        raise DeadLetterError(
            f"{poison.num_rows} records without a usable timestamp cannot be written aside: {refusal.strerror}",
            where=str(folder),
            fix="Make undecodable_path a folder that all machines share and every executor can write to; Spark then "
            "retries the batch",
        ) from refusal
    return path


def _letter(span: Range, row: dict[str, object]) -> dict[str, object]:
    headers = row["headers"]
    return {
        "topic": span.partition.topic,
        "partition": span.partition.partition,
        "offset": row["offset"],
        "key": _base64(row["key"]),
        "value": _base64(row["value"]),
        "headers": None
        if not isinstance(headers, list)
        else [{"key": header["key"], "value": _base64(header["value"])} for header in headers],
    }


def _base64(value: object) -> str | None:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else None


def _safe(topic: str) -> str:
    quoted = quote(topic, safe="")
    if len(quoted) <= _NAME_CHARS:
        return quoted
    return f"{quoted[:_NAME_CHARS]}~{hashlib.sha256(topic.encode()).hexdigest()[:16]}"
