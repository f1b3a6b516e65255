"""`announce`: sends a query's location, the names of its stores and hints about new commits to the serving nodes.

All are optional. Nodes rely on the checkpoint's commit log: without a hint they see a commit at their next poll, and
without names a store is `op0` and its columns have Spark's names. Nodes with a `--checkpoint-root` above the location
need no other configuration for the query. Rule: no failure here stops the query. A separate thread calls Redis, so that
a Redis that hangs delays neither a batch nor other listeners.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import ValidationError

from understudy_pipeline.announcing.query_plan import QueryPlan, announced_stores
from understudy_pipeline.announcing.spark_query import SparkQuery
from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import masked_location
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.bus.base import BusError
from understudy_shared.bus.message_auth import message_auth
from understudy_shared.bus.messages import Announcement
from understudy_shared.bus.redis_sync import SyncPublisher
from understudy_shared.reads.tokens import Position

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

_FAILED = {"action": "announce-failed"}

RETRY_MS = 1000
"""Pause before the next try after Redis failed, and between polls for a plan while no commit arrives."""

REPEAT_MS = 60_000
"""Interval of resending the names, or the location, so that a Redis that was emptied gets them back."""

MAX_PLANS = 20
"""Number of plans that are searched for stateful aggregations: a query without one by then has no aggregation."""

_STOP_S = 3.0
"""Longest time that `close` waits for the last messages to be sent. Each call to Redis has a shorter deadline."""


def announce(
    query: StreamingQuery,
    *,
    application_id: str,
    redis: str,
    names: Mapping[int, str] | None = None,
    listen: bool = True,
    gossip_key_file: str | Path | None = None,
) -> Announced:
    """Announce a started query to the nodes of `application_id`, until it ends or `close` is called.

    `redis` is the URL that the nodes use: redis://host:port/db, rediss:// or unix:///path. A store takes the alias of
    the DataFrame that aggregates (`.agg(...).alias("aircraft")`); `names` sets or overrides names by operator id. With
    `listen=False` only names are sent, no commits. `gossip_key_file` is the file of the nodes' setting of that name, by
    default that of the variable UNDERSTUDY_GOSSIP_KEY_FILE. Raises SettingsError for a malformed URL, application id or
    key file. It never fails because Redis cannot be reached.
    """
    try:
        Announcement(application_id=application_id, query_id="any", stores=[])
    except ValidationError:
        raise SettingsError("the application id must have 1 to 256 characters", where="application_id") from None
    file = gossip_key_file or os.environ.get("UNDERSTUDY_GOSSIP_KEY_FILE")
    auth = message_auth(application_id, Path(file) if file else None, accept_unsigned=False, sender="pipeline")
    publisher = SyncPublisher(redis, application_id, auth)
    return Announced(
        SparkQuery(query),
        publisher,
        application_id=application_id,
        names=names or {},
        listen=listen,
        clock=SystemClock(),
    )


class Announced:
    """An announced query. Use it as a context manager, or call `close`. `is_announced`: its names have been sent."""

    def __init__(
        self,
        query: SparkQuery,
        publisher: SyncPublisher,
        *,
        application_id: str,
        names: Mapping[int, str],
        listen: bool,
        clock: Clock,
    ) -> None:
        self.is_announced = False
        self._query = query
        self._publisher = publisher
        self._application_id = application_id
        self._names = dict(names)
        self._clock = clock
        self._changed = threading.Condition()
        self._last_version: int | None = None
        self._pending_version: int | None = None
        """The newest commit without a sent hint. Only one is kept, so that a slow Redis builds no queue."""
        self._closing = False
        self._announcement: Announcement | None = None
        self._location: Announcement | None = None
        """The announcement of its location, without names."""
        self._introduce_due_ms = clock.monotonic_ms()
        self._plans_left = MAX_PLANS
        self._due_ms = clock.monotonic_ms()
        self._is_listening = listen
        self._stop_listening = query.listen(self._on_commit, self._on_end) if listen else lambda: None
        self._thread = threading.Thread(target=self._run, name="understudy-announce", daemon=True)
        self._thread.start()

    @property
    def position(self) -> str | None:
        """The position token of the newest commit of this run. None before the first one, and with `listen=False`.

        A reader that sends it as `min_position` sees that commit or a later one, on any replica.
        """
        with self._changed:
            version = self._last_version
        if version is None:
            return None
        return Position(ApplicationId(self._application_id), Lineage(self._query.query_id), version, None).encode()

    def close(self) -> None:
        """Send what is pending, and stop. Does not affect the query. May be called again."""
        self._on_end()
        self._thread.join(_STOP_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_commit(self, version: int) -> None:
        with self._changed:
            self._last_version = self._pending_version = version
            self._changed.notify()

    def _on_end(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _run(self) -> None:
        try:
            self._location = self._locate()
            if self._is_listening:
                self._hint_last_commit()
            self._introduce()
            while self._wait():
                self._publish_pending()
            self._publish_pending()
        finally:
            self._stop_listening()
            self._publisher.close()

    def _hint_last_commit(self) -> None:
        """Send a hint for the last commit of an earlier run: its driver may have died before sending one."""
        try:
            last = self._query.last_version()
        except Exception as error:  # py4j has many; the next commit is hinted anyway
            log.warning("cannot read the last commit: %r", error, extra={"action": "announce"})
        else:
            if last is not None:
                self._publisher.hint(last)

    def _wait(self) -> bool:
        """Wait until there is something to send. Returns False when it is time to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._pending_version is not None, RETRY_MS / 1000)
            closing, has_commit = self._closing, self._pending_version is not None
        return not closing and (has_commit or self._is_query_active())

    def _is_query_active(self) -> bool:
        try:
            return self._query.is_active()
        except Exception:  # the JVM has ended, and the query with it
            return False

    def _publish_pending(self) -> None:
        with self._changed:
            version, self._pending_version = self._pending_version, None
        if version is not None:
            self._publisher.hint(version)
        if self._clock.monotonic_ms() >= self._due_ms:
            self._announce()

    def _announce(self) -> None:
        self._announcement = self._announcement or self._describe()
        if self._announcement is None:
            self._introduce()
            return
        if not self._sent(self._announcement):
            self._due_ms = self._clock.monotonic_ms() + RETRY_MS
            return
        self._due_ms = self._clock.monotonic_ms() + REPEAT_MS
        if self._announcement.stores and not self.is_announced:
            names = ", ".join(store.name or f"op{store.operator_id}" for store in self._announcement.stores)
            log.info("announced %s", names, extra={"action": "announced", "application_id": self._application_id})
            self.is_announced = True

    def _introduce(self) -> None:
        """Send the location alone: nodes open the checkpoint while the first batch runs, after which the names are
        known. A query that gets no input repeats it, as it would its names.
        """
        if self._location is not None and self._clock.monotonic_ms() >= self._introduce_due_ms:
            is_sent = self._sent(self._location, if_absent=True)
            self._introduce_due_ms = self._clock.monotonic_ms() + (REPEAT_MS if is_sent else RETRY_MS)

    def _sent(self, announcement: Announcement, *, if_absent: bool = False) -> bool:
        try:
            self._publisher.announce(announcement, if_absent=if_absent)
        except BusError as error:
            log.warning("the query is not announced yet: %s", error, extra=_FAILED)
            return False
        return True

    def _locate(self) -> Announcement | None:
        """Return the announcement of the location without names; None if it cannot be announced, or has a secret."""
        try:
            location = self._query.checkpoint()
            if masked_location(location) != location:
                log.warning("the location of the checkpoint has a secret: it is not announced", extra=_FAILED)
                return None
            return Announcement(
                application_id=self._application_id, query_id=self._query.query_id, stores=[], checkpoint=location
            )
        except Exception as error:  # py4j has many; and a location may be too long
            log.warning("the location of the checkpoint is not announced: %r", error, extra=_FAILED)
            return None

    def _describe(self) -> Announcement | None:
        """Return the announcement once a batch with stateful operators has been planned. For a query without stateful
        operators, return that of its location alone.
        """
        if self._plans_left == 0:
            return self._location
        try:
            plan = self._query.plan()
            stores = [] if plan is None else announced_stores(plan, self._names)
            made = Announcement(
                application_id=self._application_id,
                query_id=self._query.query_id,
                stores=stores,
                checkpoint=None if self._location is None else self._location.checkpoint,
            )
        except Exception as error:  # a plan of a later Spark, or a JVM that ends
            plan, stores, made = QueryPlan((), ()), [], None
            log.warning("cannot read the plan: %r", error, extra=_FAILED)
        if plan is not None and not stores:
            self._plans_left -= 1
            if self._plans_left == 0:
                log.warning("the query's plan has no stateful aggregation to name", extra={"action": "announce"})
        return made if stores else None
