"""Counts records that a batch had when it was planned, and that compaction had removed when an executor read it.

Executors find them, and the planner has the metrics. Where both run on one machine (where there is a spool) an executor
leaves a note in a folder of the planner. Elsewhere the log of the executor alone says it.

Offsets without records say nothing: they may belong to markers and aborted records of transactions, which never were
rows. So counts of records are compared.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from understudy_aligned.inputs.protocol import Range

log = logging.getLogger(__name__)

_SUFFIX = ".compacted"


@dataclass(slots=True)
class RangeRead:
    """The outcome of reading a range from its input."""

    records: int = 0
    has_losses: bool = False
    """Whether records of the range are lost (`fail_on_data_loss` off). How many there were is unknown."""


def count_compacted(found: RangeRead, planned: int | None) -> int:
    """Count the records that surely were in the range when it was planned, and are neither there nor lost."""
    if planned is None or found.has_losses:
        return 0
    return max(0, planned - found.records)


def report_compacted(span: Range, found: RangeRead, *, planned: int | None, batch: int, notes: str | None) -> None:
    """Log the compacted records of a range that was read, if there are any. Leave a note in the folder `notes`."""
    count = count_compacted(found, planned)
    if not count:
        return
    log.warning(
        "%s: %d of the %d records that batch %d had behind offset %s up to %s are gone: compaction (in Redis XDEL) "
        "removed them",
        *(span.partition, count, planned, batch, span.start.offset or "(the beginning)", span.end.offset),
        extra={"action": "compacted", **span.partition._asdict(), "records": count},
    )
    if notes is not None:
        # The planner may have ended, and removed the folder. Then it counts no more.
        with suppress(OSError):
            _write_note(Path(notes), span, count, batch)


class CompactedNotes:
    """The planner's side. Not thread-safe."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        """Prepare without I/O. `folder` makes the folder of the notes, or raises OSError."""
        self._make_folder = folder
        self._folder: Path | None = None
        self._batch = 0
        self._earlier = 0
        """Records of the batches before this one."""
        self._current = 0

    def begin(self, batch: int) -> str | None:
        """Return the folder for notes on a batch that executors read from the inputs. None if there is no folder.

        The notes on earlier batches are counted and removed: Spark runs one batch at a time.
        """
        if batch != self._batch:
            self._earlier = self.total()
            self._batch, self._current = batch, 0
            self._remove_notes()
        try:
            self._folder = self._make_folder()
        except OSError as refusal:
            log.info("compacted records are not counted: %s", refusal, extra={"action": "compacted"})
            return None
        return str(self._folder)

    def total(self) -> int:
        """Return the number of compacted records since the start. It never decreases."""
        self._current = max(self._current, sum(_read_note(note) for note in self._notes_of(self._batch)))
        return self._earlier + self._current

    def _notes_of(self, batch: int | None) -> list[Path]:
        pattern = f"{'*' if batch is None else batch}-*{_SUFFIX}"
        return [] if self._folder is None else list(self._folder.glob(pattern))

    def _remove_notes(self) -> None:
        for note in self._notes_of(None):
            note.unlink(missing_ok=True)


def _write_note(folder: Path, span: Range, count: int, batch: int) -> None:
    """Write the note on a range. A task that runs again replaces it."""
    name = hashlib.sha256(repr(span).encode(errors="surrogatepass")).hexdigest()
    draft = folder / f"{batch}-{name}.draft"
    draft.write_text(str(count), encoding="ascii")
    draft.replace(draft.with_suffix(_SUFFIX))


def _read_note(note: Path) -> int:
    try:
        return int(note.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
