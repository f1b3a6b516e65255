"""Bugs in what a node keeps of its bases, as patches of a running node."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from tests.system.proof.base_counts import MANY_BASES

BESIDE_PRINTERS = 1 << 40
"""Sections that no printer has: a printed row and a key are never mixed up."""


def believe_local_copies() -> None:
    """Compare no block of a local copy with its sum."""
    from understudy_node.engine.arena_files import FileCheck

    FileCheck.require = lambda self, start, end: None  # type: ignore[method-assign]
    FileCheck.check_some = lambda self: False  # type: ignore[method-assign]


def reuse_sections() -> None:
    """Give the rows that are remembered of a base to another one, after MANY_BASES others."""
    from understudy_node.engine.base import CachedBase

    made = CachedBase.__init__
    sections = cycle(range(BESIDE_PRINTERS, BESIDE_PRINTERS + MANY_BASES))

    def make(self: CachedBase, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self._section = next(sections)

    CachedBase.__init__ = make  # type: ignore[method-assign]


def compare_all_families() -> None:
    """Take a snapshot that is older than its changelog for a dead one's, except version 1, whatever tables it has."""
    from understudy_node.replica.chosen_files import BaseChoice

    BaseChoice._changes_families = lambda self, file, listed: file.version == 1  # type: ignore[method-assign]
