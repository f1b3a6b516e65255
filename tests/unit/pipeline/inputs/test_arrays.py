"""Arrays that are built from buffers equal those of pyarrow, and the way to the first rows imports no pandas."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_aligned.inputs import records

longs = st.integers(-(2**63), 2**63 - 1)
texts = st.binary(max_size=9)
headers = st.lists(st.tuples(st.text(max_size=4), st.none() | texts), max_size=3)


@given(st.lists(st.none() | longs), st.integers(0, 9), longs)
def test_numbers_are_those_of_pyarrow_in_slices_too(values: list[int | None], first: int, null: int) -> None:
    built, theirs = records.optional_numbers(values), pa.array(values, pa.int64())
    built.validate(full=True)
    assert built.equals(theirs)
    part = theirs.slice(first)
    assert records.to_numpy(part, null=null).tolist() == [null if value is None else value for value in values[first:]]
    assert records.is_null(part).tolist() == [value is None for value in values[first:]]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (7, pa.int64()),
        (-7, pa.int32()),
        (2**62, pa.uint64()),
        (None, pa.int64()),
        ("ü", pa.string()),
        ("", pa.string()),
    ],
)
def test_scalars_are_those_of_pyarrow(value: int | str | None, kind: pa.DataType) -> None:
    assert records.scalar(value, kind).equals(pa.scalar(value, kind))


def test_more_bytes_than_an_array_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit into one Arrow array"):
        records._offsets([range(2**30)] * 2)  # two gigabytes without making them


def test_the_first_rows_need_no_pandas() -> None:
    """A planner's and a worker's way, in a process of their own: records of Kafka with headers and nulls, a Redis
    stream; poison among them; spooled, read back, and in the form that Spark takes.
    """
    code = """
        import sys, tempfile
        from pathlib import Path
        from understudy_aligned import open_inputs, partition_buffer, rows, source, spool
        from understudy_aligned.inputs import kafka_rows, records, redis_rows, timestamps

        class Message:
            def __init__(self, offset, time_ms): self._offset, self._time_ms = offset, time_ms
            def offset(self): return self._offset
            def key(self): return None if self._offset else b"k"
            def value(self): return b'{"t": 5}'
            def headers(self): return [("h", b"v"), ("n", None)] if self._offset else None
            def timestamp(self): return (1, self._time_ms)

        kafka_rows.Message = Message
        place = records.TopicPartition("t", 0)
        plain = timestamps.TimestampRule()
        messages = [Message(0, 5), Message(1, -1)]
        chunk = kafka_rows.to_chunk(place, messages, plain, include_headers=True)
        kafka_rows.to_chunk(place, messages, timestamps.TimestampRule("json", "t"), include_headers=False)
        held = partition_buffer.Retained(place, records.Cursor())
        held.add(chunk)
        open_inputs.up_to(chunk, records.Cursor("1", 2))
        with tempfile.TemporaryDirectory() as folder:
            spooled = spool.Spool(Path(folder)).write([[chunk.rows]])
            ((piece,),) = spool.read_spool(spooled.path, spooled.parts[:1])
            back = piece.records
        good, times, poison, _ = rows.with_effective_times(back, rows.Times(records.NO_TIME_MS), max_jump_ms=None)
        assert (good.num_rows, poison.num_rows) == (1, 1)
        options = rows.RowOptions(include_headers=True)
        part = rows.TimedRecords([rows.RecordSource(place, 0, good.num_rows)], good, times)
        rows.output_rows([part] * 2, options, batch=1)
        fields = redis_rows.EntryFields(b"k", b"v", plain)
        redis_rows.entry_rows([(b"5-1", [b"v", b"x"])], fields, ordinal=0)
        assert "pandas" not in sys.modules, "imported"
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)
