"""All that the page shows, as one document in parts: sections, and rows of a grid (pure, in slices).

Each part is JSON bytes, so that parts are compared and sent without being made again. Ages change all the time; all
ages below two seconds count as equal, and a part in which only they changed is kept as it was.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import orjson

from understudy_router.admin.grid import (
    KEPT_MS,
    NO_GRID,
    DocumentPart,
    Grid,
    Now,
    changed,
    grid_of,
    members,
    settled_ms,
)
from understudy_router.admin.node_reports import node_document
from understudy_router.admin.read_rates import NOTHING_SERVED
from understudy_router.admin.replica_index import ROLES
from understudy_router.admin.safe_to_stop import Losses
from understudy_router.admin.snapshot import Document, Observed, Snapshot
from understudy_router.admin.snapshot_leases import overview_part
from understudy_router.admin.trends import NO_TREND
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.cluster.degraded import bus_document
from understudy_shared.base.extras import PACKAGE
from understudy_shared.page.series import Number
from understudy_shared.spark.temporal import utc_text

SCHEMA = 1

COUNTED = ("running", "restoring", "dead", "unknown")
"""The members of a summary that are summed up over all operators."""

MAX_KEPT = 60
"""Number of earlier ticks from which a viewer that comes back or is slow gets the changes alone."""


Histories = Mapping[str, Sequence[Number]]
"""The worst lags of the last hour, oldest first, by store."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The parts of the document. `sections` are all members but the tick, the time and the grid. `tick` is when any
    part last changed.

    What changed since an earlier overview is known of the parts, for those of the ticks in `known`. A viewer who
    applies it to that overview has exactly this one, the order of the rows aside.
    """

    tick: int
    generated_at: str | None
    sections: Mapping[str, DocumentPart]
    grid: Grid
    known: tuple[int, ...] = ()
    """The last MAX_KEPT ticks before this one."""

    def whole(self) -> bytes:
        """Return the document."""
        head = {"schema": SCHEMA, "tick": self.tick, "generated_at": self.generated_at}
        sections = members({name: part.text for name, part in self.sections.items()})
        return b'%b,%b,"grid":%b}' % (orjson.dumps(head)[:-1], sections, self.grid.whole())

    def since(self, tick: int) -> bytes:
        """Return the changes since the overview of a tick, in the form that a viewer gets."""
        head = orjson.dumps({"tick": self.tick, "generated_at": self.generated_at})[:-1]
        return b'%b,"sections":{%b},%b}' % (head, members(changed(self.sections, tick)), self.grid.since(tick))

    def documents(self) -> Generator[None, None, dict[str, Any]]:
        """Return the document as Python objects, in slices."""
        found: dict[str, Any] = {"schema": SCHEMA, "tick": self.tick, "generated_at": self.generated_at}
        for name, part in self.sections.items():
            found[name] = orjson.loads(part.text)
            yield
        found["grid"] = orjson.loads(self.grid.head())
        rows = found["grid"]["rows"] = []
        for row in self.grid.rows.values():
            rows.append(orjson.loads(row.text))
            yield
        return found


def overview_of(
    seen: Observed, losses: Mapping[str, Losses], histories: Histories, before: Overview | None
) -> Generator[None, None, Overview]:
    """Return the overview of now. A part that differs from the one before only by noise is kept as it was. `losses` has
    the cost of a stop of each node.
    """
    snapshot = seen.snapshot
    known = before or Overview(0, None, {}, NO_GRID)
    now = Now(max(snapshot.tick, known.tick + 1), snapshot.about.now_ms, next(iter(known.known), 0))
    nodes: list[Document] = []
    for node_id, view in snapshot.nodes.items():
        nodes.append(node_document(snapshot, view, losses[node_id]))
        yield
    grid = yield from grid_of(snapshot, known.grid, now)
    sections = {
        name: now.part(known.sections.get(name), _shape(name, value), value, keep_ms=KEPT_MS)
        for name, value in _sections(seen, histories).items()
    }
    shape = [{**each, "heartbeat_age_ms": settled_ms(each["heartbeat_age_ms"])} for each in nodes]
    sections["nodes"] = now.part(known.sections.get("nodes"), shape, nodes)
    tick = max(grid.tick, *(part.tick for part in sections.values()))
    ticks = known.known if before is None or tick == before.tick else (*before.known, before.tick)[-MAX_KEPT:]
    return Overview(tick, utc_text(snapshot.about.now_us), sections, grid, ticks)


@cache
def _release() -> str:
    return version(PACKAGE)


def _sections(seen: Observed, histories: Histories) -> Document:
    """Return the small sections, in the order of the document."""
    snapshot, about = seen.snapshot, seen.snapshot.about
    return {
        "application_id": about.application_id,
        "lineage": snapshot.lineage,
        "release": _release(),
        **about.view_of,
        **figures_of(seen),
        "stores": [_store(seen, histories, route) for route in snapshot.index.routes],
        "restores": seen.restores,
        "disagreement": seen.disagreements,
        "snapshots": overview_part(seen.snapshots),
        "events": seen.events,
    }


def figures_of(seen: Observed) -> Document:
    """Return the figures of a whole application, without its stores, nodes and replicas."""
    snapshot, about, rates = seen.snapshot, seen.snapshot.about, seen.rates
    return {
        "health": seen.health.document(),
        "freshness": dict(zip(("p50_ms", "p99_ms"), snapshot.freshness, strict=True)),
        "reads": {
            "per_s": rates.per_s,
            "errors_per_s": rates.errors_per_s,
            "within_bound_percent": rates.within_bound_percent,
            "staleness": seen.staleness,
        },
        "lag": worst_lag(snapshot),
        "end": {
            "version": snapshot.end_version or None,
            "confirmed": snapshot.end_confirmed,
            "age_ms": snapshot.end_age_ms,
        },
        "bus": bus_document(about.bus_lost_why or about.unheard),
        "counts": _counts(snapshot),
    }


def _shape(name: str, value: Any) -> object:
    """Return the facts whose change makes a section a new one: ages count by their steps."""
    if name == "lag":
        return {**value, "worst_ms": settled_ms(value["worst_ms"])}
    if name == "end":
        return {**value, "age_ms": settled_ms(value["age_ms"])}
    if name == "stores":
        return [{**each, "worst_lag_ms": settled_ms(each["worst_lag_ms"])} for each in value]
    return value


def worst_lag(snapshot: Snapshot) -> Document:
    """Return the worst lag that is known of all replicas, in versions and in time, and how many are unknown."""
    summaries, index = list(snapshot.totals.summaries.values()), snapshot.index
    known = [each for each in summaries if each.worst_lag is not None]
    worst = max(known, key=lambda each: each.worst_lag or 0, default=None)
    replica = None if worst is None else worst.worst
    task = None if replica is None else index.task[replica]
    return {
        "worst_batches": None if worst is None else worst.worst_lag,
        "worst_ms": max((each.worst_lag_ms for each in summaries if each.worst_lag_ms is not None), default=None),
        "unknown": sum(each.unknown for each in summaries),
        "store": None if task is None else index.stores_of[index.operator_id[task]][0],
        "partition": None if task is None else index.partition[task],
        "node_id": None if replica is None else index.node_ids[index.node[replica]],
    }


def _counts(snapshot: Snapshot) -> Document:
    summaries = snapshot.totals.summaries.values()
    return {
        "nodes_live": sum(view.is_live for view in snapshot.nodes.values()),
        "nodes_known": len(snapshot.nodes.keys() | {view.node_id for view in snapshot.holders}),
        "replicas": sum(each.replicas for each in summaries),
        **{kind: sum(getattr(each, kind) for each in summaries) for kind in COUNTED},
    }


def _store(seen: Observed, histories: Histories, route: StoreRoute) -> Document:
    summary = seen.snapshot.totals.summaries[route.operator_id]
    trend = seen.trends.get(route.name, NO_TREND)
    served = seen.served.get(route.name, NOTHING_SERVED)
    columns = route.codec.columns
    return {
        "store": route.name,
        "operator_id": route.operator_id,
        "partitions": route.partitions,
        **dict(zip(ROLES, summary.by_role, strict=True)),
        "restoring": summary.restoring,
        "unserved": summary.unserved,
        "worst_lag": summary.worst_lag,
        "worst_lag_ms": summary.worst_lag_ms,
        "unknown": summary.unknown,
        "trend": trend.direction,
        "eta_s": trend.eta_s,
        **served._asdict(),
        "history": histories.get(route.name, ()),
        "key": [{"name": column["name"], "type": column["type"]} for column in columns],
        "example": orjson.dumps([column["example"] for column in columns]).decode(),
    }
