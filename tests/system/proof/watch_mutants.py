"""Bugs of watches, as patches of a running node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.system.proof.patching import patch

WATCHED_TASK = "understudy_node.questions.watch.hub"


def miss_a_change() -> None:
    """Compare no watched key with each fifth version."""
    from understudy_node.questions.watch.hub import WatchedTask

    differing = WatchedTask._differing

    def some(self: WatchedTask, keys: Sequence[Any], view: Any) -> Iterator[Any]:
        return iter(()) if view.version % 5 == 0 else differing(self, keys, view)

    WatchedTask._differing = some  # type: ignore[method-assign]


def let_positions_run_ahead() -> None:
    """Say that all changes up to the next version were sent."""
    from understudy_shared.reads.tokens import decode_position

    def ahead(position_of: Callable[..., str]) -> Callable[..., str]:
        def position(*of: Any) -> str:
            said = decode_position(position_of(*of))
            return replace(said, version=said.version + 1).encode()

        return position

    patch(WATCHED_TASK, "position_of", ahead)
