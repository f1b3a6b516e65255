"""The aligned source: several inputs in timestamp order, bounded, fair, and deterministic on replay.

Spark finds it as `format("understudy")`. `jar_path` names its accelerator jar. Names are imported when they are first
used: the workers of the source do not need the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy_aligned.accelerator import jar_path
    from understudy_aligned.source import AlignedSource

__all__ = ["AlignedSource", "jar_path"]

_HOMES = {"AlignedSource": "source", "jar_path": "accelerator"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
