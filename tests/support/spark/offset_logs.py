"""The two logs of a checkpoint whose query reads the demo's flights, written as Spark does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from understudy.demo.flights import TOPIC
from understudy_aligned.inputs.records import Cursor, TopicPartition
from understudy_aligned.offset import SourceOffset


def write_batch(checkpoint: Path, batch: int, read: Mapping[int, Cursor], *, committed: bool = True) -> None:
    """A batch that read so far, by partition: logged, and committed or not yet."""
    end = SourceOffset({}, {TopicPartition(TOPIC, partition): cursor for partition, cursor in read.items()})
    _put(checkpoint / "offsets", batch, b"v1\n{}\n" + orjson.dumps(end.to_json()))
    if committed:
        _put(checkpoint / "commits", batch, b"v1\n{}")


def _put(folder: Path, batch: int, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{batch}.tmp"
    draft.write_bytes(content)
    draft.rename(folder / str(batch))
