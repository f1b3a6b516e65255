"""The messages of an Arrow stream of an export: its schema, rows, and records. pyarrow is imported by the first use.

An Arrow stream of an export is: the schema, record batches, and empty record batches whose metadata says where the
stream can be resumed, and at its end how many rows there were.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

import orjson

from understudy_shared.base.extras import PACKAGE
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.export.arrow_batches import METADATA
from understudy_shared.questions.export.columns import ExportColumns

if TYPE_CHECKING:
    import pyarrow as pa


def require_pyarrow() -> None:
    """Import pyarrow. Raises a bad-bound problem where it is not installed."""
    try:
        import pyarrow  # noqa: F401, PLC0415
    except ImportError:
        raise ProblemError(
            Problem(
                ProblemType.BAD_BOUND,
                "this service cannot write Arrow: the package pyarrow is not installed on its nodes",
                where="format",
                fix=f"Ask for format=ndjson or format=csv; or install {PACKAGE}[arrow] for the nodes",
            )
        ) from None


def schema_message(schema: pa.Schema) -> bytes:
    """Return the message that begins a stream."""
    return bytes(schema.serialize())


def shape_of(columns: ExportColumns) -> str:
    """Return the digest of names and types: parts of two nodes must agree in it."""
    said = [(each.name, each.type.name) for each in columns.columns]
    return blake2b(orjson.dumps(said), digest_size=8).hexdigest()


def batch_message(batch: pa.RecordBatch) -> bytes:
    """Return the message of a record batch."""
    return bytes(batch.serialize())


def record_message(schema: pa.Schema, members: Mapping[str, object]) -> bytes:
    """Return the message of an empty record batch that says something by its metadata."""
    import pyarrow as pa  # noqa: PLC0415

    empty = pa.record_batch([pa.array([], each.type) for each in schema], schema=schema)
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, schema)  # it writes the schema first, with the first batch
    writer.write_batch(empty, custom_metadata={METADATA: orjson.dumps(members)})
    return bytes(sink.getvalue())[schema.serialize().size :]
