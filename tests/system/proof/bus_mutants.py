"""Bugs of the bus, as patches of a running service."""

from __future__ import annotations

import sys


def parse_with_hiredis() -> None:
    """Read Redis replies with hiredis, which allocates what a header announces and keeps any stream."""
    from redis._parsers import _AsyncHiredisParser, _HiredisParser

    import understudy_shared.bus.redis_pools  # noqa: F401  # those who have bounded parsers are imported by it

    for name in ("redis_pools", "redis_sentinel"):
        module = vars(sys.modules[f"understudy_shared.bus.{name}"])
        module |= {"BoundedParser": _AsyncHiredisParser, "BoundedThreadParser": _HiredisParser}
