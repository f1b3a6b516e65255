"""The lag report: the replicas of a snapshot as a list, filtered, sorted and paged, and the forms of `GET
/admin/v1/lag`: the tree of nodes, stores and events, a page of replicas, and CSV (pure, in slices).

A cursor says after which row the next page begins. Sorted by `store` or `node` that place is stable, so a replica that
exists throughout is on exactly one page, whatever changes meanwhile. Sorted by a value, rows move, so all pages are
read from the snapshot of the first.

The tree comes in small pieces of JSON: for 100,000 replicas it takes a second, and lookups are answered between two
pieces. All pieces are of one snapshot, so they are consistent, however slowly they are read.
"""

from __future__ import annotations

import csv
import heapq
import io
import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import NamedTuple
from zlib import crc32

import orjson

from understudy_router.admin.facts import ROLES, UNKNOWN, Facts
from understudy_router.admin.node_reports import node_row
from understudy_router.admin.snapshot import ClusterSnapshot
from understudy_router.cluster.catalogue import StoreRoute
from understudy_router.cluster.readiness import bus_document
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.spark.temporal import utc_text

MAX_CURSOR_CHARACTERS = 2048
MAX_LIMIT = 1000
DEFAULT_LIMIT = 100
STATES = ("RUNNING", "RESTORING", "CREATED", "CLOSED", "DEAD", UNKNOWN)
"""States of replicas to filter by. UNKNOWN: no heartbeat of its node was heard."""

BY_VALUE = ("lag", "time_lag", "age")
SORTS = tuple(sign + name for name in ("store", "node", *BY_VALUE) for sign in ("", "-"))
"""The orders of rows; with `-` in front, descending. An unknown value is worse than any number."""

SLICE_TASKS = 1000
"""Number of tasks in one slice: one or two milliseconds."""

SLICE_SHOWN = 500
"""Number of rows that are written in one slice."""

COLUMNS = (
    "store", "operator_id", "partition", "node_id", "host", "port", "role", "state", "current_offset_position",
    "end_offset_position", "offset_lag", "time_lag_ms", "report_age_ms", "error",
)  # fmt: skip
"""The members of a row, in order."""

Row = dict[str, object]
Entry = tuple[float, float, int, int]
"""A replica by its sort keys: its value, its place, the number of its store's route, its own number. Places are unique,
and in the order of stores, partitions and node ids. The tuple has only numbers: the garbage collector leaves such
tuples out, so a list of 100,000 of them causes no pause."""


class BadLagCursorError(ProblemError):
    """An error for a cursor that is damaged, of another list, or too old."""

    def __init__(self, what: str) -> None:
        super().__init__(Problem(ProblemType.BAD_REQUEST, what, "cursor", "Begin again without a cursor"))


class LagCursor(NamedTuple):
    """The last row of a page. `digest` names the list, `tick` the snapshot of the next page (0: any)."""

    digest: int
    tick: int
    store: str
    partition: int
    node_id: str


@dataclass(frozen=True, slots=True)
class LagQuery:
    """The replicas to list, by exact names, and their order."""

    store: str | None = None
    node: str | None = None
    state: str | None = None
    role: str | None = None
    sort: str = "store"
    limit: int = DEFAULT_LIMIT
    cursor: LagCursor | None = None

    @property
    def key(self) -> str:
        return self.sort.removeprefix("-")

    @property
    def sign(self) -> float:
        return -1.0 if self.sort.startswith("-") else 1.0

    @property
    def is_by_value(self) -> bool:
        return self.key in BY_VALUE

    @property
    def digest(self) -> int:
        """The number of this page's list: a cursor is valid for one list."""
        asked = (self.store, self.node, self.state, self.role, self.sort)
        return crc32(repr(asked).encode(errors="surrogatepass"))


class LagPage(NamedTuple):
    """A page of the list. `total` counts the rows of all pages; `next` is `None` on the last one."""

    rows: list[Row]
    total: int
    next: LagCursor | None


def page_of(snapshot: ClusterSnapshot, query: LagQuery) -> Generator[None, None, LagPage]:
    """Return one page. Raises BadLagCursorError for a cursor of another list."""
    after = None if query.cursor is None else _after(snapshot, query, query.cursor)
    best, total = yield from first_of(snapshot, query, after)
    rows = _rows(snapshot, best[: query.limit])
    has_more = len(best) > query.limit
    return LagPage(rows, total, _cursor(snapshot, query, best[query.limit - 1]) if has_more else None)


def first_of(
    snapshot: ClusterSnapshot, query: LagQuery, after: tuple[float, float] | None = None
) -> Generator[None, None, tuple[list[Entry], int]]:
    """Return the first entries of a list after a place, one more than its limit, and how many the whole list has."""
    best: list[Entry] = []
    total = 0
    for few in _matching(snapshot, query):
        total += len(few)
        later = few if after is None else [entry for entry in few if entry[:2] > after]
        best = heapq.nsmallest(query.limit + 1, chain(best, later))
        yield
    return best, total


def every_row(snapshot: ClusterSnapshot, query: LagQuery) -> Iterator[Sequence[Row]]:
    """Yield all rows in order, in slices; the slices are empty while the rows are sorted."""
    runs = []
    for few in _matching(snapshot, query):
        few.sort()
        runs.append(few)
        yield ()
    merged = heapq.merge(*runs)
    while few := list(islice(merged, SLICE_SHOWN)):
        yield _rows(snapshot, few)


def _rows(snapshot: ClusterSnapshot, entries: Sequence[Entry]) -> list[Row]:
    routes = snapshot.index.routes
    return [
        {"store": routes[which].name, "operator_id": routes[which].operator_id, **replica_row(snapshot, replica)}
        for _, _, which, replica in entries
    ]


def replica_row(snapshot: ClusterSnapshot, replica: int) -> Row:
    """Return a replica, without its store. Unknown values are `None`."""
    index = snapshot.index
    view, facts = snapshot.holders[index.node[replica]], snapshot.facts(replica)
    return {
        "partition": index.partition[index.task[replica]],
        "node_id": view.node_id,
        "host": view.endpoint.host,
        "port": view.endpoint.port,
        "role": ROLES[index.role[replica]],
        "state": facts.state,
        "current_offset_position": facts.version,
        "end_offset_position": snapshot.end_version if snapshot.end_confirmed else None,
        "offset_lag": facts.offset_lag,
        "time_lag_ms": facts.time_lag_ms,
        "report_age_ms": facts.report_age_ms,
        "error": facts.error,
    }


def selected(snapshot: ClusterSnapshot, query: LagQuery, route: StoreRoute) -> Iterator[Sequence[int]]:
    """Yield the replicas of a store that pass the query's filters, in slices; a task's are in one slice."""
    index, state = snapshot.index, query.state
    role = None if query.role is None else ROLES.index(query.role)
    tasks = index.tasks_of_store(route)
    for first in range(0, len(tasks), SLICE_TASKS):
        few = _of_node(snapshot, query.node, index.of_tasks(tasks[first : first + SLICE_TASKS]))
        if role is not None:
            few = [replica for replica in few if index.role[replica] == role]
        if state is not None:
            few = [replica for replica in few if (snapshot.facts(replica).state or UNKNOWN) == state]
        yield few


def _matching(snapshot: ClusterSnapshot, query: LagQuery) -> Iterator[list[Entry]]:
    """Yield the entries of the replicas that pass the query's filters, in slices."""
    index, value_of = snapshot.index, _value(snapshot, query)
    sign = query.sign if query.key == "store" else 1.0
    for which, route in enumerate(index.routes):
        base = which * index.replicas
        if query.store in {None, route.name}:
            for few in selected(snapshot, query, route):
                yield [(value_of(replica), sign * (base + replica), which, replica) for replica in few]


def _of_node(snapshot: ClusterSnapshot, node_id: str | None, within: range) -> Sequence[int]:
    """Return the replicas within a range, all or those of one node."""
    if node_id is None:
        return within
    number = snapshot.index.number_of.get(node_id)
    replicas = () if number is None else snapshot.index.of_node[number]
    return replicas[bisect_left(replicas, within.start) : bisect_left(replicas, within.stop)]


def _value(snapshot: ClusterSnapshot, query: LagQuery) -> Callable[[int], float]:
    """Return a function that gives a replica's sort value: lower comes first."""
    index, sign, key = snapshot.index, query.sign, query.key
    if key == "store":
        return lambda replica: 0.0
    if key == "node":
        return lambda replica: sign * index.node[replica]

    def value(facts: Facts) -> float:
        found = facts.offset_lag if key == "lag" else facts.time_lag_ms if key == "time_lag" else facts.report_age_ms
        return sign * (math.inf if found is None else found)

    usual = [None if view.own else value(view.facts) for view in snapshot.holders]

    def of(replica: int) -> float:
        known = usual[index.node[replica]]
        return value(snapshot.facts(replica)) if known is None else known

    return of


def _cursor(snapshot: ClusterSnapshot, query: LagQuery, last: Entry) -> LagCursor:
    index, (_, _, which, replica) = snapshot.index, last
    tick = snapshot.tick if query.is_by_value else 0
    return LagCursor(query.digest, tick, index.routes[which].name, *index.name(replica))


def _after(snapshot: ClusterSnapshot, query: LagQuery, cursor: LagCursor) -> tuple[float, float]:
    """Return the sort key after which this page begins: between two others if the row of the cursor is gone."""
    if cursor.digest != query.digest:
        raise BadLagCursorError("the cursor belongs to a list with other filters, or in another order")
    index, name = snapshot.index, (cursor.partition, cursor.node_id)
    which = bisect_left(index.routes, cursor.store, key=lambda route: route.name)
    is_store = which < len(index.routes) and index.routes[which].name == cursor.store
    replicas = index.of_store(index.routes[which]) if is_store else range(0)
    at = bisect_left(replicas, name, key=index.name)
    is_there = at < len(replicas) and index.name(replicas[at]) == name
    place = which * index.replicas + replicas.start + at - (0 if is_there else 0.5)
    if query.key == "store":
        return (0.0, query.sign * place)
    if query.key == "node":
        number = bisect_left(index.node_ids, cursor.node_id)
        is_known = index.number_of.get(cursor.node_id) == number
        return (query.sign * (number - (0 if is_known else 0.5)), place)
    if not is_there:
        raise BadLagCursorError("the cursor does not belong to this list")
    return (_value(snapshot, query)(replicas[at]), place)


def encoded(cursor: LagCursor) -> str:
    return urlsafe_b64encode(orjson.dumps(list(cursor))).decode().rstrip("=")


def decoded(text: str) -> LagCursor:
    """Decode a cursor. Raises BadLagCursorError."""
    if len(text) > MAX_CURSOR_CHARACTERS or not text.isascii():
        raise BadLagCursorError("the cursor does not parse")
    try:
        found = orjson.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (Error, ValueError):
        raise BadLagCursorError("the cursor does not parse") from None
    kinds = [type(each) for each in found] if isinstance(found, list) else []
    if kinds != [int, int, str, int, str] or min(found[0], found[1], found[3]) < 0:
        raise BadLagCursorError("the cursor does not parse")
    return LagCursor(*found)


EVERY = LagQuery()

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def lag_tree(snapshot: ClusterSnapshot, query: LagQuery = EVERY) -> Iterator[bytes]:
    """Yield the tree, or its part about one store or certain replicas. Pieces may be empty.

    Raises NoSuchStoreError with the first piece.
    """
    stores, store = snapshot.index.stores, query.store
    routes = [] if stores is None else list(stores.by_name.values()) if store is None else [stores.get(store)]
    yield orjson.dumps(_head(snapshot, snapshot.bus_lost_why))[:-1] + b',"nodes":['
    for number, view in enumerate(snapshot.nodes.values()):
        yield b"," * bool(number) + orjson.dumps(node_row(snapshot, view))
    yield b'],"stores":['
    for number, route in enumerate(routes):
        yield b"," * bool(number)
        yield from _store(snapshot, route, query)
    about = snapshot.about
    events = [
        {"at": about.wall_text(event.at_ms), "event": event.event, "detail": event.detail} for event in snapshot.events
    ]
    yield b'],"events":' + orjson.dumps(events) + b"}"


def page_document(snapshot: ClusterSnapshot, page: LagPage) -> dict[str, object]:
    return {
        **_head(snapshot, snapshot.about.bus_lost_why),
        "replicas": page.rows,
        "total": page.total,
        "next_cursor": None if page.next is None else encoded(page.next),
    }


def csv_text(slices: Iterable[Sequence[Row]]) -> Iterator[bytes]:
    """Yield the heading and the rows as comma-separated values (RFC 4180). An unknown value is an empty field."""
    yield _lines([COLUMNS])
    for rows in slices:
        yield _lines([[_cell(row[column]) for column in COLUMNS] for row in rows])


def _head(snapshot: ClusterSnapshot, bus_lost_why: str | None) -> dict[str, object]:
    """Return the first members of the tree and of a page."""
    about, assignment = snapshot.about, snapshot.assignment
    return {
        "generated_at": utc_text(about.now_us),
        "view_of": about.view_of,
        "application_id": about.application_id,
        "lineage": snapshot.lineage,
        "end_offset_position": snapshot.end_version or None,
        "end_confirmed": snapshot.end_confirmed,
        "bus": bus_document(bus_lost_why or about.unheard),
        "assignment": None
        if assignment is None
        else {"term": assignment.term, "epoch": assignment.epoch, "written_by": assignment.written_by},
    }


def _store(snapshot: ClusterSnapshot, route: StoreRoute, query: LagQuery) -> Iterator[bytes]:
    yield orjson.dumps({"store": route.name, "operator_id": route.operator_id})[:-1] + b',"partitions":['
    comma = b""
    for replicas in selected(snapshot, query, route):
        for replica in _in_order_of_choice(snapshot, replicas):
            yield comma + orjson.dumps(replica_row(snapshot, replica))
            comma = b","
        yield b""
    yield b"]}"


def _in_order_of_choice(snapshot: ClusterSnapshot, replicas: Sequence[int]) -> Iterator[int]:
    """Yield the replicas of some tasks in the order of the assignment, the active first."""
    assignment, index = snapshot.assignment, snapshot.index
    for task, few in groupby(replicas, key=index.task.__getitem__):
        assert assignment is not None
        held = {index.node[replica]: replica for replica in few}
        for node_id in assignment.tasks[index.key(task)].holders:
            replica = held.get(index.number_of[node_id])
            if replica is not None:
                yield replica


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode(errors="replace")


def _cell(value: object) -> object:
    """Return a value with an apostrophe in front if a spreadsheet would take it for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
