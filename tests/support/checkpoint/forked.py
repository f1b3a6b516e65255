"""A copy of a hand-made checkpoint on which another query went on: the same query id, other commits, other values."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint


@dataclass(frozen=True, slots=True)
class ForkedCheckpoint(HandmadeCheckpoint):
    """Its versions count every word a thousand times as often."""

    def counts(self, version: int) -> dict[str, int]:
        return {word: 1000 * count for word, count in HandmadeCheckpoint.counts(self, version).items()}


def fork_of(checkpoint: HandmadeCheckpoint, path: Path) -> ForkedCheckpoint:
    """A copy of it as `cp -p` makes it: the commits so far keep their times."""
    shutil.copytree(checkpoint.path, path)
    return ForkedCheckpoint(path, provider=checkpoint.provider, partitions=checkpoint.partitions, conf=checkpoint.conf)
