"""The state of one node for people: its health, and its page `/admin/`, with an overview in the form of a router's.

It lists this node alone, because a node knows no others. Values that only a router has are None, and the page leaves
them out.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import orjson
from fastapi import APIRouter

from understudy_node.node import Node
from understudy_node.questions.lookup.reads import NodeReads
from understudy_node.replica.task import TaskReplica
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.background import Supervisor, in_slices
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.extras import PACKAGE
from understudy_shared.base.words import LagInfo, ReplicaState
from understudy_shared.bus.messages import Restore
from understudy_shared.http.health import HealthReport, HealthState, Indicator, Status
from understudy_shared.http.problems import ProblemType
from understudy_shared.page.feed import OverviewFeed
from understudy_shared.page.routes import history_routes, page_routes
from understudy_shared.page.series import (
    FRESHNESS,
    HISTORY_MINUTES,
    LAG,
    READS,
    SHOWN_POINTS,
    STEP_MS,
    History,
    Key,
    Number,
    Point,
    history_document,
    require_kept,
    thinned,
    worst,
)
from understudy_shared.page.words import FRESH_MS
from understudy_shared.spark.temporal import utc_text
from understudy_shared.telemetry.metrics import RequestCounts

log = logging.getLogger(__name__)

INDICATORS: Final = ("reads", "degraded", "checkpoint", "query")
"""Names of the indicators, those nearest to this process first: some of a router's, with its runbooks."""


class NodeHealth:
    """The time since when each indicator is in its state, kept between requests."""

    def __init__(self, node: Node, status: Callable[[], Status]) -> None:
        self._node = node
        self._status = status
        self._last: HealthReport | None = None

    def look(self) -> HealthReport:
        found = indicators(self._status(), self._node.query_status())
        self._last = HealthReport.after(self._last, found, SystemClock().wall_us())
        return self._last

    def document(self) -> dict[str, object]:
        """Return `GET /admin/v1/health`."""
        report, host = self.look(), self._node.host
        return {
            "schema": 1,
            "generated_at": utc_text(SystemClock().wall_us()),
            "application_id": self._node.settings.application,
            "node": f"{host.host}:{host.port}",
            "node_id": self._node.node_id,
            **report.document(),
        }


def indicators(status: Status, query: Mapping[str, Any]) -> tuple[Indicator, ...]:
    """Judge by the status of /readyz, and by `Node.query_status` (pure)."""
    found = {name: Indicator(name) for name in INDICATORS}
    if status.reasons:
        found["reads"] = Indicator(
            "reads",
            HealthState.HURT,
            f"Not ready: {status.reasons[0]}",
            "some keys are not answered here",
            "; ".join(status.reasons[1:]),
            "wait while it restores; if it does not end, look at its log",
        )
    if status.causes:
        first, *others = status.causes.values()
        found["degraded"] = Indicator(
            "degraded",
            HealthState.ATTENTION,
            first,
            "lookups go on",
            "; ".join(others),
            "see its runbook",
            tuple(status.causes),
        )
    if query["state"] == "unknown":
        found["checkpoint"] = Indicator(
            "checkpoint",
            HealthState.ATTENTION,
            "The end of the query is not confirmed",
            "no lag is known: readers with a bound on it are refused",
            "the storage of the checkpoint does not answer, or was not asked yet",
            "check the checkpoint's storage",
        )
    if query["state"] == "idle":
        found["query"] = Indicator(
            "query",
            HealthState.ATTENTION,
            "The query has not committed for longer than it usually takes",
            "answers stay what they are",
            "it was stopped, waits for its trigger, or has no input",
            "look at the query; lookups go on",
        )
    return tuple(found.values())


Document = dict[str, Any]

MAX_ROWS = 10_000
"""Most store partitions with a row each; of more, only the worst have one."""

WORST_ROWS = 200
MAX_RESTORES = 200
MAX_SHOWN_EVENTS = 50
WINDOW_MS = 60_000

FAILED = frozenset(each.slug for each in ProblemType if each.status >= 500 or each is ProblemType.OVERLOADED)
"""The outcomes of lookups that failed, but not by the reader's fault."""


class HeldPartition(NamedTuple):
    """A store partition that is held here, and the lag of the version that it shows."""

    reader: StoreReader
    partition: int
    replica: TaskReplica
    lag: LagInfo | None

    @property
    def batches(self) -> int | None:
        return None if self.lag is None else self.lag.offset_lag

    @property
    def time_ms(self) -> int | None:
        return None if self.lag is None else self.lag.time_lag_ms


class NodeRates:
    """The lookups of the last minute, by the counters of this node (time is passed in)."""

    def __init__(self, requests: RequestCounts) -> None:
        self._requests = requests
        self._seen: deque[tuple[float, int, int]] = deque(maxlen=128)

    def see(self, now_ms: float) -> tuple[Number, Number]:
        """Read the counters now. Return lookups and failed ones a second; None while that is not known."""
        ended = self._requests.ended(("lookup",))
        answered = sum(count for (_, outcome), count in ended.items() if outcome in ("found", "absent"))
        failed = sum(count for (_, outcome), count in ended.items() if outcome in FAILED)
        seen = self._seen
        while len(seen) > 1 and now_ms - seen[1][0] >= WINDOW_MS:
            seen.popleft()
        rates: tuple[Number, Number] = (None, None)
        if seen and (took_s := (now_ms - seen[0][0]) / 1000) >= 1:
            rates = round((answered - seen[0][1]) / took_s, 1), round((failed - seen[0][2]) / took_s, 1)
        if not seen or now_ms - seen[-1][0] >= 1000:
            seen.append((now_ms, answered, failed))
        return rates


@dataclass(frozen=True, slots=True)
class NodeOverview:
    """The overview at a tick, which is when it last differed from the one before."""

    tick: int
    generated_at: str | None
    document: Document
    text: bytes
    known: tuple[int, ...] = ()

    def whole(self) -> bytes:
        return self.text

    def since(self, tick: int) -> bytes:
        return self.text

    def documents(self) -> Generator[None, None, Document]:
        yield
        return self.document


def held_partitions(node: Node) -> Generator[None, None, list[HeldPartition]]:
    """Return the store partitions that are held here, by store and partition, in slices."""
    generation = node.generation
    found: list[HeldPartition] = []
    for _, reader in sorted(generation.readers.items() if generation else ()):
        for partition, replica in sorted(reader.replicas.items()):
            view = replica.view
            lag = None if view is None else replica.progress.lag_of(view)
            found.append(HeldPartition(reader, partition, replica, lag))
            yield
    return found


def points_of(node: Node, held: Sequence[HeldPartition], rates: tuple[Number, Number]) -> dict[Key, Point]:
    """Return a point of the history of each series: of the whole, of each store, and of each partition."""
    fresh = node.measures.visible.freshness(node.now_ms())
    found = {Key(LAG): _point(held), Key(READS): Point(*rates)}
    found[Key(FRESHNESS)] = Point(None, None) if fresh is None else Point(fresh.p50_ms, fresh.p99_ms)
    for name, some in _by_store(held).items():
        found[Key(LAG, name)] = _point(some)
    found |= {Key(LAG, each.reader.store.name, each.partition): Point(each.batches, each.time_ms) for each in held}
    return found


def overview_of(
    node: Node,
    held: Sequence[HeldPartition],
    health: HealthReport,
    rates: tuple[Number, Number],
    histories: Mapping[str, Sequence[Number]],
) -> Generator[None, None, Document]:
    """Return the document, in slices. `histories` has the lags of the last hour by store."""
    end, now_ms, name = node.end, node.now_ms(), node.node_id or f"{node.host.host}:{node.host.port}"
    fresh = node.measures.visible.freshness(now_ms)
    stores: list[Document] = []
    for some in _by_store(held).values():
        stores.append(_store(some, histories))
        yield
    rows: list[Document] = []
    is_whole = len(held) <= MAX_ROWS
    for each in held if is_whole else heapq.nlargest(WORST_ROWS, held, key=_badness):
        store = each.reader.store.name
        rows.append({"store": store, "partition": each.partition, "cells": {name: _cell(each)}})
        yield
    lags = node.measures.lags
    for replica in {each.replica for each in held}:
        replica.readings.count()  # the lags of the answers until now
        yield
    return {
        "application_id": node.settings.application,
        "lineage": node.lineage,
        "release": version(PACKAGE),
        "service": "server" if node.node_id is None else "node",
        "router": f"{node.host.host}:{node.host.port}",
        "router_id": node.node_id,
        "health": health.document(),
        "freshness": {
            "p50_ms": None if fresh is None else fresh.p50_ms,
            "p99_ms": None if fresh is None else fresh.p99_ms,
        },
        "reads": {
            "per_s": rates[0],
            "errors_per_s": rates[1],
            "within_bound_percent": None,
            "staleness": {
                "le_ms": [*lags.staleness_ms.bounds, None],
                "counts": [*lags.staleness_ms.counts],
            },
        },
        "lag": _worst(held, name),
        "end": {
            "version": end.version or None,
            "confirmed": end.confirmed_ms is not None,
            "age_ms": None if end.confirmed_ms is None else _settled_ms(now_ms - end.confirmed_ms),
        },
        "bus": None,
        "counts": counts_of(held),
        "stores": stores,
        "nodes": None,
        "restores": _restores(held, name),
        "disagreement": [],
        "snapshots": {"held": 0, "leases": []},
        "events": [
            {"id": event.at_us, **event.as_dict()} for event in [*node.events][::-1][:MAX_SHOWN_EVENTS]
        ],
        "grid": {"columns": [name], "rows": rows, "total": len(held), "order": "all" if is_whole else "worst"},
    }  # fmt: skip


def counts_of(held: Sequence[HeldPartition]) -> Document:
    """Return the number of replicas by state. One that restores does not also count as of unknown lag."""
    return {
        "replicas": len(held),
        "running": sum(each.replica.state is ReplicaState.RUNNING for each in held),
        "restoring": sum(each.replica.restoring for each in held),
        "dead": 0,
        "unknown": sum(each.batches is None and not each.replica.restoring for each in held),
    }


def after(before: NodeOverview | None, document: Document, now_us: int) -> NodeOverview:
    """Return the overview that follows the one before: a document that is the same keeps its tick."""
    text, now = orjson.dumps(document), utc_text(now_us)
    if before is not None and before.text == text:
        return NodeOverview(before.tick, now, before.document, text)
    tick = 1 if before is None else before.tick + 1
    return NodeOverview(tick, now, {"schema": 1, "tick": tick, "generated_at": now, **document}, text)


def _by_store(held: Sequence[HeldPartition]) -> dict[str, list[HeldPartition]]:
    found: dict[str, list[HeldPartition]] = {}
    for each in held:
        found.setdefault(each.reader.store.name, []).append(each)
    return found


def _point(held: Sequence[HeldPartition]) -> Point:
    return Point(worst(each.batches for each in held), worst(each.time_ms for each in held))


def _badness(each: HeldPartition) -> float:
    return float("inf") if each.batches is None else each.batches


def _worst(held: Sequence[HeldPartition], name: str) -> Document:
    """Return the worst lag that is known, and how many are unknown."""
    known = [each for each in held if each.batches is not None]
    found = max(known, key=_badness, default=None)
    return {
        "worst_batches": None if found is None else found.batches,
        "worst_ms": max((each.time_ms for each in known if each.time_ms is not None), default=None),
        "unknown": len(held) - len(known),
        "store": None if found is None else found.reader.store.name,
        "partition": None if found is None else found.partition,
        "node_id": None if found is None else name,
    }


def _store(held: Sequence[HeldPartition], histories: Mapping[str, Sequence[Number]]) -> Document:
    store, lag = held[0].reader.store, _point(held)
    opened = sum(each.lag is not None for each in held)
    return {
        "store": store.name,
        "operator_id": store.operator_id,
        "partitions": len(held),
        "active": opened,
        "restoring": sum(each.replica.restoring for each in held),
        "unserved": len(held) - opened,
        "worst_lag": lag.first,
        "worst_lag_ms": lag.second,
        "unknown": sum(each.lag is not None and each.batches is None for each in held),
        "trend": None,
        "history": histories.get(store.name, ()),
        "key": [{"name": column["name"], "type": column["type"]} for column in store.codec.columns],
        "example": orjson.dumps([column["example"] for column in store.codec.columns]).decode(),
    }


def _cell(each: HeldPartition) -> Document:
    replica = each.replica
    return {
        "role": replica.role[0].upper(),
        "state": str(replica.state),
        "lag": each.batches,
        "lag_ms": None if each.time_ms is None else _settled_ms(each.time_ms),
        "age_ms": 0,
        "percent": _percent(replica.restore),
        "error": None if replica.error is None else str(replica.error),
    }


def _percent(restore: Restore | None) -> float | None:
    if restore is None or not restore.total_bytes:
        return None
    return round(min(100.0, 100 * restore.done_bytes / restore.total_bytes), 1)


def _restores(held: Sequence[HeldPartition], name: str) -> list[Document]:
    """Return the restores, each with the stores of its task."""
    stores: dict[str, list[str]] = {}
    for each in held:
        if each.replica.restore is not None:
            stores.setdefault(each.replica.key, []).append(each.reader.store.name)
    restores = {each.replica.key: restore for each in held if (restore := each.replica.restore) is not None}
    return [
        {"node_id": name, "task": key, "stores": stores.get(key, []), **restore.model_dump(), "bytes_per_s": None}
        for key, restore in [*restores.items()][:MAX_RESTORES]
    ]


def _settled_ms(ms: float) -> int:
    """Return an age in whole seconds, 0 for a fresh one: else the page would differ each second."""
    return 0 if ms < FRESH_MS else int(ms // 1000) * 1000


class NodePage:
    """The data of the page. Without viewers it only notes a point of the last hour every ten seconds."""

    def __init__(self, node: Node, health: NodeHealth, reads: NodeReads) -> None:
        self._node = node
        self._health = health
        self._reads = reads
        self._kept = History()
        self._rates = NodeRates(reads.requests)
        self._clock = SystemClock()
        self._feed = OverviewFeed(self._look, self._clock)
        self._tasks = Supervisor()

    def routes(self) -> Iterator[APIRouter]:
        yield history_routes(self._history)
        yield page_routes(self._document, self._history, self._feed.respond)

    def end(self) -> None:
        self._feed.end()

    def start(self) -> None:
        self._tasks.start("poll the node for viewers", self._feed.run())
        self._tasks.start("keep the last hour", self._keep_history())

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _document(self) -> dict[str, Any]:
        return (await self._feed.overview()).document

    async def _look(self, before: NodeOverview | None) -> NodeOverview:
        held, now_ms = await in_slices(held_partitions(self._node)), self._clock.monotonic_ms()
        self._note(held)
        names = {each.reader.store.name for each in held}
        kept = {name: self._kept.series(Key(LAG, name), now_ms, HISTORY_MINUTES)[0] for name in names}
        histories: dict[str, Sequence[Number]] = {name: thinned(values, SHOWN_POINTS) for name, values in kept.items()}
        rates = self._rates.see(now_ms)
        document = await in_slices(overview_of(self._node, held, self._health.look(), rates, histories))
        return after(before, document, self._clock.wall_us())

    async def _history(
        self, store: str | None, partition: int | None, minutes: int = HISTORY_MINUTES
    ) -> dict[str, Any]:
        """Return the last minutes of the whole, of a store, or of a partition. Raises ProblemError for a history that
        is not kept, NoSuchStoreError for a store that does not exist.
        """
        await self._note_if_due()
        partitions = None
        if store is not None:
            partitions = self._reads.reader(store).partitions
        require_kept(self._kept, store, partition, partitions)
        now_ms, now_us = self._clock.monotonic_ms(), self._clock.wall_us()
        return history_document(self._kept, store, partition, now_ms=now_ms, now_us=now_us, minutes=minutes)

    async def _note_if_due(self) -> None:
        if self._kept.is_due(self._clock.monotonic_ms()):
            self._note(await in_slices(held_partitions(self._node)))

    def _note(self, held: Sequence[HeldPartition]) -> None:
        """Note a point of the history if it is time for one."""
        now_ms = self._clock.monotonic_ms()
        if self._kept.is_due(now_ms):
            self._kept.note(now_ms, points_of(self._node, held, self._rates.see(now_ms)))

    async def _keep_history(self) -> None:
        while True:
            try:
                await self._note_if_due()
            except Exception:
                log.exception("a point of the last hour is missing", extra={"action": "history-failed"})
            await asyncio.sleep(STEP_MS / 1000)
