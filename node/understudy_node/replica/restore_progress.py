"""The progress of a store's restore: one worker writes it, heartbeats and metrics read it."""

from __future__ import annotations

from collections.abc import Collection

from understudy_shared.bus.messages import Restore

CHOOSING, FETCHING, BUILDING, OPENING = "choosing a snapshot", "fetching files", "building", "opening"
REPLAYING = "replaying changes"
"""The base is open, and more than `acceptable_recovery_lag` versions are missing."""


class RestoreProgress:
    """The progress of one store. `total_bytes` is None while no snapshot was chosen."""

    __slots__ = ("done_bytes", "stage", "total_bytes")

    def __init__(self) -> None:
        self.stage = CHOOSING
        self.done_bytes = 0
        self.total_bytes: int | None = None

    def __repr__(self) -> str:
        return f"RestoreProgress({self.stage}, {self.done_bytes} of {self.total_bytes} bytes)"

    def begin(self, total_bytes: int) -> None:
        """Begin to fetch so many bytes; bytes of an earlier attempt count no more."""
        self.stage, self.done_bytes, self.total_bytes = FETCHING, 0, total_bytes

    def fetched(self, size_bytes: int) -> None:
        """Add bytes that have come to the local disk."""
        self.done_bytes += size_bytes


def of_all(stores: Collection[tuple[RestoreProgress, bool]]) -> Restore:
    """Merge the restores of a task's stores: the stage of the first store that is not open. Each comes with whether it
    is open.
    """
    stage = next((progress.stage for progress, is_open in stores if not is_open), REPLAYING)
    sizes = [progress.total_bytes for progress, is_open in stores if progress.total_bytes is not None or not is_open]
    known = [size for size in sizes if size is not None]
    return Restore(
        stage=stage,
        done_bytes=sum(progress.done_bytes for progress, _ in stores),
        total_bytes=sum(known) if len(known) == len(sizes) else None,
    )
