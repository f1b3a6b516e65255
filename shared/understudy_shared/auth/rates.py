"""Rate limits of principals (pure: time is passed in). Off unless the file of credentials sets a number.

Each process counts by itself. One batch is one request.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_shared.base.token_bucket import TokenBucket

MAX_PRINCIPALS = 10_000
"""Number of buckets. Beyond it, the principal that asked longest ago starts anew with a full one."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Requests a second, of each principal without a number of its own. None: no limit."""

    requests_per_s: float | None = None
    burst_s: float = 2.0
    """Seconds of its rate that a principal may save up."""
    principals: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        return self.requests_per_s is not None or bool(self.principals)

    def of(self, name: str) -> float | None:
        return self.principals.get(name, self.requests_per_s)


class RateLimiter:
    """The buckets of all principals."""

    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __repr__(self) -> str:
        return f"Rates({len(self._buckets)} principals)"

    def wait_s(self, name: str, now_s: float) -> int:
        """Return 0 when the principal may send this request, else the whole seconds until it may."""
        per_s = self.limits.of(name)
        if per_s is None:
            return 0
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= MAX_PRINCIPALS:
                self._buckets.popitem(last=False)
            burst = max(1.0, per_s * self.limits.burst_s)
            bucket = self._buckets[name] = TokenBucket(per_s=per_s, burst=burst, now_s=now_s)
        else:
            self._buckets.move_to_end(name)
        return 0 if bucket.take(now_s) else max(1, math.ceil(bucket.wait_s()))
