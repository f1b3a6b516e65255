"""A router with a planted bug: it asks nodes as if its readers had no bound. Its arguments are those of `understudy`.

What it compares answers with is the reader's bound, as ever.
"""

from __future__ import annotations

from typing import Any


def forget_bounds() -> None:
    """Patch this process: the project's code has no hook for it."""
    from understudy_router.forwarding.forward import Forwarder
    from understudy_shared.reads.bounds import NO_BOUND

    look_up = Forwarder.look_up

    def without_bound(self: Forwarder, route: Any, _bound: Any, *rest: Any) -> None:
        look_up(self, route, NO_BOUND, *rest)

    Forwarder.look_up = without_bound  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    from understudy.cli import main

    forget_bounds()
    main()
