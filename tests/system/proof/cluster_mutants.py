"""Bugs in what nodes think of each other, as patches of a running node."""

from __future__ import annotations


def believe_that_all_histories_agree() -> None:
    """Take any two commits for the same one."""
    from understudy_shared.bus.messages import SeenCommit

    SeenCommit.is_same_as = lambda self, other: True  # type: ignore[method-assign]


def leave_unsigned_leases() -> None:
    """Take an unsigned holder of the lease for one who may have it."""
    from understudy_shared.bus.message_auth import MessageAuth

    MessageAuth.is_signed_owner = lambda self, holder: True  # type: ignore[method-assign]
    MessageAuth.missing_key = lambda self: None  # type: ignore[method-assign]
