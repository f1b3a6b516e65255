"""Understudy in a Spark job: `announce`, called once a query has started.

It is imported when it is first used, because its modules need the packages of the extra `announce`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy_pipeline.announcing.announcer import Announced, announce

__all__ = ["Announced", "announce"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.announcing.announcer"), name)
