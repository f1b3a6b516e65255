"""Builds an arena: a snapshot's records as they are, in one file, and a hash index over them in another.

The rule: bounded steps, and one pass. A piece of the content is searched for records while it is in the processor's
cache, then written; it is neither buffered nor read again. A generator yields after each piece, so that a worker can
share its thread among restores; the long numpy calls let other threads run. The index is renamed into place last: an
arena without it was never finished.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from understudy_node.engine.arena_format import index_path, records_path
from understudy_node.engine.arena_index import EntryList, write_index
from understudy_node.engine.arena_records import RecordFinder
from understudy_node.engine.arena_sums import BlockSums


def build_arena(directory: Path, pieces: Iterable[bytes | memoryview]) -> Iterator[int]:
    """Write a decompressed snapshot and its index into `directory`; yield the number of records found so far.

    `ArenaBase.open` can open the directory when this is exhausted, also after a restart. A piece may be overwritten
    once the next one is asked for.
    """
    directory.mkdir(parents=True, exist_ok=True)
    index_path(directory).unlink(missing_ok=True)
    seed = int.from_bytes(os.urandom(4), "little")
    finder = RecordFinder(seed, where=str(records_path(directory)))
    entries, sums = EntryList(), BlockSums()
    with records_path(directory).open("wb") as file:
        for piece in pieces:
            for found in finder.entries(memoryview(piece)):
                entries.add(found)
            sums.add(memoryview(piece))
            file.write(piece)
            yield len(entries)
    finder.end()
    in_order = entries.sorted()
    yield len(entries)
    for _ in write_index(directory, in_order, records_bytes=finder.content_bytes, records_sums=sums.end(), seed=seed):
        yield len(entries)
