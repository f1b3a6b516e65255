"""Understudy in a Spark job: `announce`, called once a query has started, and a source that reads in timestamp order.

`jar_path` names the accelerator jar of the source.

Spark finds the source as `format("understudy")`. Names are imported when they are first used, because the source's
workers do not need the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy_pipeline.accelerator.jar import jar_path
    from understudy_pipeline.aligned.source import AlignedSource
    from understudy_pipeline.announcing.announcer import Announced, announce

__all__ = ["AlignedSource", "Announced", "announce", "jar_path"]

_HOMES = {
    "AlignedSource": "aligned.source",
    "Announced": "announcing.announcer",
    "announce": "announcing.announcer",
    "jar_path": "accelerator.jar",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
