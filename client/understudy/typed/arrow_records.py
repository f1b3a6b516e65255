"""The record batches of an Arrow export, with what its records say. It imports pyarrow when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.questions.export.columns import METADATA


class CutError(UnderstudyError):
    """A stream ended before its end."""


def arrow_records(source: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield each batch of a stream, with what is said beside its rows: `cursor`, `end`, `error` or nothing.

    The last one says the end or an error. Raises CutError for a stream that ends without that.
    """
    import pyarrow as pa  # noqa: PLC0415

    try:
        reader = pa.ipc.open_stream(source)
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            said = {} if metadata is None else said_by(metadata[METADATA])
            yield batch, said
            if "end" in said or "error" in said:
                return
    except StopIteration:
        raise CutError("the stream has no end record") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise CutError(f"the stream was cut: {error}") from None


def said_by(line: bytes) -> dict[str, Any]:
    """Return what a record says. Raises CutError for one that is no JSON."""
    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        said = None
    if not isinstance(said, dict):
        raise CutError("the stream has a line that is no JSON")
    return said


def require_rows(rows: int, end: Mapping[str, Any]) -> None:
    """Raise CutError where a stream has not as many rows as its end says."""
    if end.get("rows") != rows:
        raise CutError(f"the stream has {rows} rows, and its end record says {end.get('rows')}")
