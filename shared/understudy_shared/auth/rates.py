"""Rate limits of principals and of applications (pure: time is passed in).

They are off unless the file of credentials sets a limit. Each process counts by itself. A batch counts as one request.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from enum import Enum, auto

from understudy_shared.auth.credentials import StoredLimits
from understudy_shared.auth.principals import matches
from understudy_shared.base.throttles import TokenBucket

MAX_BUCKETS = 10_000
"""Number of buckets. Above it, the least recently used one is dropped, and starts full when it is used again."""


class Limited(Enum):
    """The kinds of buckets: requests of a principal, and requests to an application."""

    PRINCIPAL = auto()
    APPLICATION = auto()


class RateLimiter:
    """The buckets of all principals and applications."""

    def __init__(self, limits: StoredLimits) -> None:
        self.limits = limits
        self._buckets: OrderedDict[tuple[Limited, str], TokenBucket] = OrderedDict()

    def __repr__(self) -> str:
        return f"RateLimiter({len(self._buckets)} buckets)"

    def wait_s(self, limited: Limited, name: str, now_s: float) -> int:
        """Return 0 if this request is within the rate of a principal or application; else the seconds, rounded up to a
        whole number, until one is.
        """
        per_s, key = self._per_s(limited, name), (limited, name)
        if per_s is None:
            return 0
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._buckets.popitem(last=False)
            burst = max(1.0, per_s * self.limits.burst_s)
            bucket = self._buckets[key] = TokenBucket(per_s=per_s, burst=burst, now_s=now_s)
        else:
            self._buckets.move_to_end(key)
        return 0 if bucket.take(now_s) else max(1, math.ceil(bucket.wait_s()))

    def _per_s(self, limited: Limited, name: str) -> float | None:
        limits = self.limits
        if limited is Limited.PRINCIPAL:
            return limits.principals.get(name, limits.requests_per_s)
        return next((per_s for pattern, per_s in limits.applications.items() if matches(pattern, name)), None)
