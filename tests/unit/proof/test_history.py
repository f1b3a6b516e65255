"""A history and a truth come back from their files as they were."""

from __future__ import annotations

from pathlib import Path

from tests.system.proof.history import (
    Bases,
    Bounds,
    Commit,
    FaultEvent,
    FinalReplica,
    History,
    Memory,
    Meta,
    Read,
    Record,
    Scan,
    SnapshotRead,
    Told,
    Value,
    Watch,
    Watched,
)
from tests.system.proof.history_file import HISTORY_NAME, HistoryWriter, load
from tests.system.proof.schedule import short
from tests.system.proof.truth_of_state import ABSENT, Truth

META = Meta(7, short(7).to_json(), settings={"rate": 300}, versions={"spark": "4.3.0"})
READ = Read(1, 2, 10.5, 12.25, "router-1", "words", '["a",1]', Bounds(max_lag=2), 200, "found", value={"count": 3})
REFUSED = Read(1, 3, 20, 21, "", "words", '["é"]', Bounds(), 503, "refused", candidates=(("node-1", "dead"),))
COMMIT = Commit(1, 5.0, None, 17)
FAULT = FaultEvent(11.0, "kill-active", "node-1", "injected")
FINAL = FinalReplica("node-1", "words", 0, 1, {'["a",1]': {"count": 3}, '["b",1]': None})
MEMORY = Memory(12.0, "node-1", 17, 1 << 20)
BASES = Bases(13.0, "node-1", 17, 25)
SCAN = Scan(1, 5.0, 9.0, "words", 1, "b", "whole", pages=2, versions=(1,), rows=(('["a",1]', {"count": 3}),))
SNAPSHOT = SnapshotRead(1, 9.0, 9.5, None, "whole", version=1, results=(("words", '["a",1]', 1, {"count": 3}, ""),))
TOLD = (Told(9.1, "snapshot", '["a",1]', 1, None, {"count": 3}), Told(9.2, "version", "", 2, 2))
WATCH = Watch(1, 9.0, 9.5, "sync", "words", ('["a",1]',), None, None, "ended", events=TOLD)
RECORDS: list[Record] = [META, COMMIT, READ, SCAN, SNAPSHOT, WATCH, FAULT, REFUSED, Watched(30.0), MEMORY, BASES, FINAL]


def written(folder: Path) -> HistoryWriter:
    writer = HistoryWriter(folder)
    for record in RECORDS:
        writer.write(record)
    return writer


def test_a_history_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = written(tmp_path).close()
    assert path.suffix == ".gz"
    assert not (tmp_path / HISTORY_NAME).exists()
    recorded = History(META, [READ, REFUSED], [SCAN], [SNAPSHOT], [COMMIT], [FAULT], [FINAL], 30.0, [MEMORY], [BASES])
    recorded.watches = [WATCH]
    assert load(path) == load(tmp_path) == recorded


CHANGES: dict[str, dict[str, list[tuple[int, Value | None]]]] = {
    "words": {"a": [(2, {"n": 1}), (4, ABSENT), (5, {"n": 2})], "b": [(3, {"n": 9})]}
}


def test_the_truth_is_what_held_last() -> None:
    truth = Truth(CHANGES, first=1, last=6)
    assert [truth.at("words", "a", version) for version in range(1, 7)] == [
        ABSENT,
        {"n": 1},
        {"n": 1},
        ABSENT,
        {"n": 2},
        {"n": 2},
    ]
    assert truth.at("words", "never", 3) is ABSENT
    assert truth.state("words", 4) == {"b": {"n": 9}}
