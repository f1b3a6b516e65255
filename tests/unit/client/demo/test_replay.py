"""How far a checkpoint's log says that the demo's query reads, and how many flights a write has."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.spark.offset_logs import write_batch

from understudy.demo.flights import LAND_EVERY_MS, busy_flights, flights_file, load_flights, planned
from understudy_aligned.inputs.records import Cursor
from understudy_aligned.offset import OffsetError


@pytest.mark.full
def test_nearly_no_write_has_more_flights_than_a_busy_one() -> None:
    times_s = [flight.event_time for flight in load_flights(flights_file())]
    for speed_up in (60, 3600, 100_000):
        slice_s = max(60, int(speed_up * LAND_EVERY_MS / 1000))
        counts = dict.fromkeys((time_s // slice_s for time_s in times_s), 0)
        for time_s in times_s:
            counts[time_s // slice_s] += 1
        assert sum(count > busy_flights(speed_up) for count in counts.values()) <= len(counts) / 1000


def test_what_is_planned_is_what_the_newest_logged_batch_ends_with(tmp_path: Path) -> None:
    assert planned(tmp_path) is None
    write_batch(tmp_path, 9, {0: Cursor("60000-7", 5, 60_000)})
    assert planned(tmp_path) == 8
    write_batch(tmp_path, 10, {0: Cursor("60000-7", 5, 60_000), 1: Cursor("120000-9", 4, 120_000)}, committed=False)
    assert planned(tmp_path) == 10


def test_a_checkpoint_of_another_source_is_reported(tmp_path: Path) -> None:
    write_batch(tmp_path, 0, {})
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"logOffset":3}')
    with pytest.raises(OffsetError, match="an offset of a file source"):
        planned(tmp_path)
