"""The changelogs that a node keeps for watches: those that were read last, within a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_node.replica.past_versions import KeptChangelogs, StoreChanges

ROOM = 10_000


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3 * ROOM // 2)), max_size=40))
def test_those_that_were_read_last_are_kept_within_the_limit_each_as_it_was_read(reads: list[tuple[int, int]]) -> None:
    kept, read = KeptChangelogs(ROOM), dict[str, StoreChanges]()
    for number, size in reads:
        path = str(number)
        if kept.find(path, number) is None:
            read.pop(path, None)
            read[path] = StoreChanges({b"key": bytes(size)}, ())
            kept.keep(path, number, read[path])
        else:
            read[path] = read.pop(path)
        assert kept.find(path, number + 1) is None, "of another commit"
    found = {path: kept.find(path, int(path)) for path in read}
    assert all(each is None or each is read[path] for path, each in found.items())
    fitting = [path for path in read if read[path].size_bytes <= ROOM]
    kept_paths = [path for path in fitting if found[path] is not None]
    assert kept_paths == fitting[len(fitting) - len(kept_paths) :], "the others were not read for longer"
    assert sum(read[path].size_bytes for path in kept_paths) <= ROOM
    assert bool(kept_paths) == bool(fitting)
