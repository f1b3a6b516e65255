"""Bugs in what nodes think of each other, as patches of a running node."""

from __future__ import annotations


def believe_that_all_histories_agree() -> None:
    """Take any two commits for the same one."""
    from understudy_shared.commits import SeenCommit

    SeenCommit.is_same_as = lambda self, other: True  # type: ignore[method-assign]
