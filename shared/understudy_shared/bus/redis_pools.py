"""Connection pools for a Redis URL: one for asyncio, one for a thread. Sentinel URLs lead to the primary.

No call is retried: its caller decides, within its own deadline. Nothing is connected when a pool is made, but files for
TLS are read, so that a wrong one is refused at the start.
"""

from __future__ import annotations

from typing import Any

import redis
from redis import asyncio as aio
from redis.asyncio.connection import parse_url as parse_url_for_tasks
from redis.asyncio.retry import Retry as RetryOfTasks
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from understudy_shared.bus.redis_connection import connection_options, sentinel_place
from understudy_shared.bus.redis_replies import BoundedParser, BoundedThreadParser
from understudy_shared.bus.redis_sentinel import SentinelPool, ThreadSentinelPool
from understudy_shared.bus.redis_tls import RedisTlsConnection, ThreadTlsConnection, with_verified_tls


def task_pool(url: str, *, timeout_s: float, max_connections: int) -> aio.BlockingConnectionPool:
    """Make a pool of `max_connections` for the tasks of a loop; more calls wait. Raises SettingsError."""
    place = sentinel_place(url)
    retry = RetryOfTasks(NoBackoff(), 0)
    bounds: dict[str, Any] = {"max_connections": max_connections, "timeout": timeout_s}
    if place is not None:
        return SentinelPool(place, timeout_s=timeout_s, retry=retry, **bounds)
    options = connection_options(url, parse_url_for_tasks, timeout_s=timeout_s, retry=retry, parser_class=BoundedParser)
    return aio.BlockingConnectionPool(**{**with_verified_tls(options, RedisTlsConnection), **bounds})


def thread_pool(url: str, *, timeout_s: float, parser: type = BoundedThreadParser) -> redis.ConnectionPool:
    """Make a pool of one connection for a thread that makes one call at a time. Raises SettingsError."""
    place = sentinel_place(url)
    retry = Retry(NoBackoff(), 0)
    if place is not None:
        return ThreadSentinelPool(place, timeout_s=timeout_s, retry=retry, parser=parser)
    options = connection_options(url, parse_url, timeout_s=timeout_s, retry=retry, parser_class=parser)
    return redis.ConnectionPool(**{**with_verified_tls(options, ThreadTlsConnection), "max_connections": 1})
