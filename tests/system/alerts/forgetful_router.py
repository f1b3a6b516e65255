"""A router with a planted bug: it asks nodes as if its readers had no bound. Its arguments are those of `understudy`.

What it compares answers with is the reader's bound, as ever.
"""

from __future__ import annotations

from typing import Any


def forget_bounds() -> None:
    """Patch this process: the project's code has no hook for it."""
    from understudy_router.routing.choose import Choices
    from understudy_router.transport.node_requests import NodeRequest
    from understudy_shared.reads.bounds import NO_BOUND

    choose, begin = Choices.choose, NodeRequest.__init__

    def choose_without(self: Choices, route: Any, partition: int, _bound: Any) -> Any:
        return choose(self, route, partition, NO_BOUND)

    def begin_without(self: NodeRequest, route: Any, _bound: Any, *rest: Any) -> None:
        begin(self, route, NO_BOUND, *rest)

    Choices.choose = choose_without  # type: ignore[method-assign,assignment]
    NodeRequest.__init__ = begin_without  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    from understudy.cli import main

    forget_bounds()
    main()
