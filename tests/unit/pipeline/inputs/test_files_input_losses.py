"""Files as an input: what must not happen to files, and how a range that lost rows is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.spark.file_inputs import (
    STARTED,
    TP,
    behind,
    config,
    fetched,
    line,
    offsets,
    read_range,
    started,
    write,
)

from understudy_pipeline.inputs.files import FilesInput
from understudy_pipeline.inputs.protocol import DataLostError
from understudy_pipeline.inputs.records import Cursor


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().close()


def loses(reads: FilesInput, *, said: str) -> None:
    for _ in range(2):  # it is no less lost when it is asked again
        with pytest.raises(DataLostError, match=said):
            reads.fetch({TP: 9}, timeout_ms=0)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.__dict__.get("action") == "data-lost"]


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "warn"])
def test_a_file_that_appears_before_its_turn_was_over_is_out_of_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fail: bool
) -> None:
    write(tmp_path, "b.jsonl", line(1), line(2))
    reads = started(config(tmp_path, fail_on_data_loss=fail))
    reads.fetch({TP: 1}, timeout_ms=0)
    write(tmp_path, "a.jsonl", line(0))
    if fail:
        loses(reads, said=r"'a\.jsonl' appeared after 'b\.jsonl' was read")
        return
    with caplog.at_level(logging.WARNING):
        assert offsets(fetched(reads)) == ["b.jsonl:1"]
        assert fetched(reads) == []
    assert len(warned(caplog)) == reads.losses == 1


@pytest.mark.parametrize("fail", [True, False], ids=["fail", "warn"])
def test_a_file_that_goes_unread_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture, fail: bool) -> None:
    write(tmp_path, "a.jsonl", line(1), line(2))
    unread = write(tmp_path, "b.jsonl", line(3))
    write(tmp_path, "c.jsonl", line(4))
    reads = started(config(tmp_path, fail_on_data_loss=fail))
    reads.fetch({TP: 1}, timeout_ms=0)
    unread.unlink()
    if fail:
        loses(reads, said=r"'b\.jsonl' is gone")
        return
    with caplog.at_level(logging.WARNING):
        assert offsets(fetched(reads)) == ["a.jsonl:1", "c.jsonl:0"]
    assert len(warned(caplog)) == 1


def test_a_file_that_goes_after_it_was_read_is_not_missed(tmp_path: Path) -> None:
    first = write(tmp_path, "a.jsonl", line(1))
    second = write(tmp_path, "b.jsonl", line(2))
    reads = started(config(tmp_path))
    rows = fetched(reads)
    first.unlink()
    second.unlink()
    write(tmp_path, "c.jsonl", line(3))
    assert offsets(fetched(reads)) == ["c.jsonl:0"]
    assert offsets(read_range(config(tmp_path), behind(rows[1]), Cursor("c.jsonl:0", 3))) == ["c.jsonl:0"]


def test_after_a_restart_the_file_that_was_read_last_must_be_there(tmp_path: Path) -> None:
    write(tmp_path, "b.jsonl", line(2))
    with pytest.raises(DataLostError, match=r"'a\.jsonl' is gone"):
        started(config(tmp_path), Cursor("a.jsonl:0", 1))
    lenient = config(tmp_path, fail_on_data_loss=False)
    reads = started(lenient, Cursor("a.jsonl:0", 1))
    assert offsets(fetched(reads)) == ["b.jsonl:0"]
    reads.seek({TP: Cursor("a.jsonl:0", 1)}, timeout_ms=0)
    assert reads.losses == 2
    with pytest.raises(DataLostError, match="ends before its row 3"):
        started(config(tmp_path), Cursor("b.jsonl:3", 4))


@pytest.mark.parametrize("content", [b"", b'{"t": 1}\n{"t": 2}\n{"t": 3}\n'], ids=["truncated", "grown"])
@pytest.mark.parametrize("taken", [1, 2])
def test_a_file_that_changes_after_it_was_begun_is_lost(tmp_path: Path, content: bytes, taken: int) -> None:
    path = write(tmp_path, "a.jsonl", line(1), line(2))
    reads = started(config(tmp_path))
    reads.fetch({TP: taken}, timeout_ms=0)
    path.write_bytes(content)
    loses(reads, said=r"'a\.jsonl' changed from 16 to \d+ bytes")


@pytest.mark.parametrize("harm", ["first-gone", "end-gone", "middle-gone", "truncated", "between"])
def test_a_range_is_read_as_it_was_planned_or_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    paths = [write(tmp_path, f"{name}.jsonl", line(1), line(2)) for name in "bdf"]
    rows = fetched(started(config(tmp_path)))
    match harm:
        case "first-gone":
            paths[0].unlink()
        case "middle-gone":
            paths[1].unlink()
        case "end-gone":
            paths[2].unlink()
        case "truncated":
            paths[1].write_bytes(line(1))
        case "between":
            write(tmp_path, "e.jsonl", line(3))
    with pytest.raises(DataLostError, match=r"from 'b\.jsonl:0' to 'f\.jsonl:1' are lost"):
        read_range(config(tmp_path), behind(rows[0]), behind(rows[5]))
    lenient = config(tmp_path, fail_on_data_loss=False)
    left = read_range(lenient, behind(rows[0]), behind(rows[5]))
    assert len(left) == {"first-gone": 4, "end-gone": 3, "middle-gone": 3, "truncated": 4, "between": 6}[harm]
    assert len(warned(caplog)) == 1
