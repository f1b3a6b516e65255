"""A committed version as one process saw it, and whether two processes saw the same commit (pure).

A copy of a checkpoint keeps the query id. Only the commits tell it apart: the same version, committed at another time
or with other content, belongs to another history.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from understudy_shared.base.plausible import CEILING

NEWEST: Final = 2
"""Number of commits in a heartbeat: a node that has not seen the newest one yet can compare the one before."""

MAX_TIME_US: Final = 2**62
_GRAINS_US: Final = (1_000_000, 1_000)


class SeenCommit(BaseModel):
    """A version, the modification time of its commit file, and a digest of that file's content ("" if not known)."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    version: Annotated[int, Field(ge=1, le=CEILING)]
    committed_at_us: Annotated[int, Field(ge=1, le=MAX_TIME_US)]
    digest: str = Field(default="", max_length=16)

    def is_same_as(self, other: SeenCommit) -> bool:
        """Whether both are one commit, as far as they can tell."""
        if self.digest and other.digest and self.digest != other.digest:
            return False
        return is_same_time(self.committed_at_us, other.committed_at_us)


def is_same_time(one_us: int, other_us: int) -> bool:
    """Whether two readings of one file's time may be equal: they are compared at the coarser of their resolutions.

    Storage keeps nanoseconds, milliseconds or whole seconds, and mounts of one storage may differ. What a reading is
    cut to shows in itself: a time that ends in six zeros is compared in seconds.
    """
    grain_us = max(_grain_us(one_us), _grain_us(other_us))
    return one_us // grain_us == other_us // grain_us


def _grain_us(time_us: int) -> int:
    return next((grain_us for grain_us in _GRAINS_US if time_us % grain_us == 0), 1)
