"""Publishes for a Spark driver, without an event loop: the same keys, channel and documents as `Gossip`.

A query must never wait for Redis. Another thread makes each call, so its deadline holds even while a name is resolved.
A hint that cannot be sent is counted and logged, and the query continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Full, Queue

import redis
from redis.exceptions import RedisError

from understudy_shared.base.masking import masked
from understudy_shared.bus.base import BusError
from understudy_shared.bus.gossip import ANNOUNCED, Names, read_announcement, sealed
from understudy_shared.bus.message_auth import MessageAuth, UnauthenticError
from understudy_shared.bus.messages import Announcement, BadMessageError, CommitHint
from understudy_shared.bus.redis_connection import bus_error, checked, leaves
from understudy_shared.bus.redis_pools import leave_replica, thread_pool
from understudy_shared.bus.redis_scripts import PUT, opened

log = logging.getLogger(__name__)

DEADLINE_MS = 500
"""The deadline of one call: generous for Redis, and short beside a micro-batch."""

Work = tuple[Callable[[], None], "Future[None]"]


class SyncPublisher:
    """A publisher of commits and of the announcement of one query. Any thread may call; one call is made at a time."""

    def __init__(self, url: str, application_id: str, auth: MessageAuth | None = None) -> None:
        """Connect at the first call; without `auth` sign nothing. Raises SettingsError for a malformed URL."""
        self.failures = 0
        """The number of hints that could not be sent."""
        self.where = masked(url)
        self._url = url
        self._application_id = application_id
        self._names = Names(application_id)
        self._auth = auth or MessageAuth(application_id)
        pool = checked(url, lambda: thread_pool(url, timeout_s=DEADLINE_MS / 1000))
        self._client: redis.Redis = redis.Redis(connection_pool=pool)
        self._work: Queue[Work | None] = Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def hint(self, version: int) -> None:
        """Publish that `version` was committed. Never raises: without it, nodes see the commit at their next poll."""
        try:
            spoken = sealed(self._auth, CommitHint(application_id=self._application_id, version=version))
            self._do("hinting", lambda: self._publish(spoken))
        except Exception as error:  # no error of a hint may end the user's query
            self.failures += 1
            count = self.failures
            if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th ...: an outage must not flood the log
                log.warning("no hint: %s", error, extra={"action": "hint-failed", "count": count})

    def announce(self, announcement: Announcement, *, if_absent: bool = False) -> None:
        """Write and publish the pipeline's announcement of its query. Raises BusError.

        With `if_absent`, stored names stay: the query does not know them yet. If it was let go, its location returns.
        """
        spoken = sealed(self._auth, announcement)

        def write() -> None:
            is_written = self._client.set(self._names.announcement, PUT + spoken, nx=if_absent)
            if not if_absent:
                self._publish(spoken)
            elif not is_written:
                self._return_location(announcement)
            self._client.publish(ANNOUNCED, self._application_id.encode())

        self._do("announcing", write)

    def _return_location(self, announcement: Announcement) -> None:
        """Write the location into the stored announcement if it was taken out (`gossip.let_go`). Names stay."""
        stored = opened(bytes(self._client.get(self._names.announcement) or b""))  # type: ignore[arg-type]  # not async
        if stored is None:
            return
        with suppress(UnauthenticError, BadMessageError):  # nodes refuse it, too, until the names are sent
            found = read_announcement(self._auth, self._application_id, stored.payload)
            if found.checkpoint is None:
                again = found.model_copy(update={"checkpoint": announcement.checkpoint})
                self._client.set(self._names.announcement, PUT + sealed(self._auth, again))

    def close(self) -> None:
        """Close the connection after the current call, if there is one. May be called again."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            try:
                self._work.put(None, timeout=DEADLINE_MS / 1000)
            except Full:  # it hangs, and dies with the process
                return
            thread.join(DEADLINE_MS / 1000)

    def _publish(self, spoken: bytes) -> None:
        leave_replica(self._client)
        self._client.publish(self._names.channel, spoken)

    def _do(self, doing: str, call: Callable[[], None]) -> None:
        """Have the other thread make the call within the deadline. Raises BusError."""
        done: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise BusError("the publisher was closed", where=self.where)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="understudy-publisher", daemon=True)
                self._thread.start()
            try:
                self._work.put_nowait((call, done))
            except Full:
                raise self._failed(TimeoutError(), doing) from None
        try:
            done.result(DEADLINE_MS / 1000)
        except (RedisError, OSError, TimeoutError) as error:
            done.cancel()  # Cancel it if it has not begun: its caller no longer waits.
            raise self._failed(error, doing) from error

    def _failed(self, error: BaseException, doing: str) -> BusError:
        return bus_error(error, doing=doing, url=self._url, timeout_ms=DEADLINE_MS)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            call, done = work
            if not done.set_running_or_notify_cancel():
                continue
            try:
                call()
            except Exception as error:
                if leaves(error):
                    self._client.connection_pool.disconnect()
                done.set_exception(error)
            else:
                done.set_result(None)
        self._client.close()
        self._client.connection_pool.close()
