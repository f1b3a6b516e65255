"""Waits for a checkpoint that is not there yet: a query makes it when it starts, which may be after the node.

Only what a query that starts leaves behind is waited for: no folder, an empty one, or Spark's folders without a batch.
Everything else that is not a checkpoint is refused at once, because it will never be one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_node.checkpoint.logs import batch_ids
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import NotACheckpointError
from understudy_shared.base.throttles import Reminder

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
_SPARKS = frozenset({"metadata", "offsets", "commits", "sources", "state"})


def wait_for_checkpoint(
    files: CheckpointFiles, clock: Clock, *, limit_ms: int | None, sleep: Callable[[float], None]
) -> None:
    """Return when the query has made its checkpoint, or when what is there will never be one: opening it says why.

    Raises NotACheckpointError after `limit_ms`; None waits without a limit. Errors of the storage propagate.
    """
    began_ms = clock.monotonic_ms()
    reminder = Reminder()
    while is_awaited(files):
        now_ms = clock.monotonic_ms()
        if limit_ms is not None and now_ms - began_ms >= limit_ms:
            raise NotACheckpointError(
                f"there is no checkpoint: {what_is_there(files)}",
                where=files.url,
                fix="Give the checkpointLocation of the query's writeStream, start the query, or wait longer with "
                "--checkpoint-wait-ms",
            )
        if reminder.is_due(now_ms):
            log.warning(
                "waiting: there is no checkpoint at %s yet. Start the query, or check the path", files.url,
                extra={"action": "no-checkpoint"},
            )  # fmt: skip
        sleep(LOOK_EVERY_S)


def what_is_there(files: CheckpointFiles) -> str:
    """Say why the directory cannot be followed as a checkpoint yet."""
    names = files.list("")
    if names is None:
        return "the folder does not exist"
    return "no batch was begun in it" if names else "the folder is empty"


def is_awaited(files: CheckpointFiles) -> bool:
    """Whether a query that starts may still make its checkpoint here."""
    if isinstance(files, LocalFiles) and Path(files.url).is_file():
        return False
    names = {name for name in files.list("") or () if not name.startswith(".")}
    if "metadata" in names:
        return False
    return names <= _SPARKS and not batch_ids(files.list("offsets") or ()) and "state" not in names
