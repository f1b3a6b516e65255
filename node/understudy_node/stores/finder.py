"""The interface of lookups whose answer is not one row as it is stored: chosen when a store is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from understudy_node.replica.task_view import TaskView


class Finder(Protocol):
    """Finds what a version of a task says of a key."""

    def find(self, view: TaskView, stored: bytes) -> bytes | None:
        """The members of an answer that say what was found, with a comma behind them; None for an absent key.

        `stored` is the key as the provider would keep it: its prefix, then the row.
        """

    def key_row(self, kept: bytes) -> bytes:
        """The row bytes of the key that a record of the store is found by. `kept` is the record's key."""

    def first_bytes(self, view: TaskView) -> bytes | None:
        """What the keys of these records begin with, in a store that has others, too; None where there can be none."""


MakeFinder = Callable[[bytes], Finder]
"""From the provider's prefix of a row."""
