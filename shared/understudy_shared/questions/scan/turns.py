"""A request for a page of a scan, judged: which partitions it reads, and whether its principal and its cursor may."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from understudy_shared.auth.principals import Authorization
from understudy_shared.auth.redaction import require_key
from understudy_shared.base.words import StoreKind
from understudy_shared.http.edge import Receive
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.questions.lookup.windows import WindowsOf, window_key
from understudy_shared.questions.scan.cursor import ScanCursor
from understudy_shared.questions.scan.page import PartPage, Place, ReadPart, Room
from understudy_shared.questions.scan.prefix import KeyPrefix, parse_prefix
from understudy_shared.questions.scan.question import ScanQuestion, ScanRequest
from understudy_shared.reads.bounds import BadBoundError, Bound
from understudy_shared.reads.tokens import BadCursorError
from understudy_shared.spark.key_codec import ANY_PARTITION, KeyCodec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScannedStore:
    """A store that is scanned. `held` are the partitions that are read here, of `partitions`."""

    name: str
    kind: str
    application_id: str
    lineage: str
    codec: KeyCodec
    partitions: int
    held: Sequence[int]


class Asker:
    """The client of a request; `is_gone` becomes true when it disconnects."""

    def __init__(self) -> None:
        self.is_gone = False

    async def watch(self, receive: Receive) -> None:
        """Wait until the client disconnects. The body of its request was read before."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave()

    def leave(self) -> None:
        """Note that the client disconnected."""
        self.is_gone = True

    async def while_it_waits(self, receive: Receive, work: Coroutine[None, None, T]) -> T | None:
        """Return what the work returns; cancel it when the client disconnects, and return None."""
        loop = asyncio.get_running_loop()
        working, watching = loop.create_task(work, name="long read"), loop.create_task(self.watch(receive))
        watching.add_done_callback(lambda _: working.cancel())
        try:
            return await working
        except asyncio.CancelledError:
            if not self.is_gone:
                raise
            return None
        finally:
            watching.cancel()

    def while_there(self, read: ReadPart) -> ReadPart:
        """Return the same function for a page that ends with a problem when its client has disconnected."""

        async def read_on(place: Place, room: Room) -> PartPage:
            if self.is_gone:
                raise ProblemError(Problem(ProblemType.BAD_REQUEST, "the client left before its page was whole"))
            return await read(place, room)

        return read_on


@dataclass(frozen=True, slots=True)
class ScanTurn:
    """A request for a page that was parsed and granted. `partitions` are those of the scan, `digest` and `prefix`
    those of its question. `is_confined`: the reader may not see where other keys are. `is_watch`: it is read for a
    watch of a prefix.
    """

    store: ScannedStore
    asked: ScanRequest
    bound: Bound
    partitions: Sequence[int]
    digest: str
    is_confined: bool
    prefix: KeyPrefix | None = None
    is_watch: bool = False

    @property
    def is_ordered(self) -> bool:
        """Whether rows of all partitions come in one order. Timers in a range of time come in that of their times."""
        question = self.asked.question
        of_times = self.store.kind == StoreKind.TIMERS and question.has_range and not self.is_count
        return question.is_ordered or of_times

    @property
    def is_count(self) -> bool:
        return self.asked.question.operation == "count"


def scan_turn(store: ScannedStore, asked: ScanRequest, bound: Bound, authorization: Authorization) -> ScanTurn:
    """Judge whether a request is granted and its cursor fits, before anything is read. Raises its problem."""
    question, include_expired = asked.question, bound.selection.include_expired
    if question.include_expired != include_expired:
        question = replace(question, include_expired=include_expired)
        asked = replace(asked, question=question)
    leading = question.prefix
    prefix = parse_prefix(store.codec, leading, store.partitions) if leading else None
    is_confined = authorization.keys.prefixes is not None
    if question.windows is not None:
        partitions = _of_windows(store, question.windows, authorization)
    else:
        if is_confined:
            require_key(authorization, {} if prefix is None else prefix.printed)
        partitions = _partitions(store, question, prefix)
    digest = question.digest(_asker_of(authorization, store))
    if asked.cursor is not None:
        asked.cursor.require_of(store.application_id, store.lineage, store.name, digest)
        _require_place(asked.cursor, partitions, bound)
    return ScanTurn(store, asked, bound, partitions, digest, is_confined, prefix)


def _of_windows(store: ScannedStore, asked: WindowsOf, authorization: Authorization) -> Sequence[int]:
    """Return the partitions in which the windows of a key are. Raises the problem of a key that was not granted."""
    key = window_key(store.codec, store.kind)
    row = key.codec.parse_json(list(asked.key))
    if authorization.keys.prefixes is not None:
        require_key(authorization, key.leading(key.codec.to_json(key.codec.encode(row))))
    if store.codec.is_scattered:
        return _everywhere(store)
    return (store.codec.partition(row, store.partitions),) if key.at is None else _held(store)


def _require_place(cursor: ScanCursor, partitions: Sequence[int], bound: Bound) -> None:
    """Raise BadCursorError for a cursor that is of none of the partitions, or of another version than is asked for."""
    if cursor.partition not in partitions:
        what = f"the cursor is of partition {cursor.partition}, which is not among those of the scan"
        raise BadCursorError(what, where="cursor", fix="Begin again without one")
    named = bound.read_version
    if named is not None and named.number != cursor.version:
        what = f"the cursor is of version {cursor.version}, and version {named.number} is asked for"
        raise BadCursorError(what, where="cursor", fix="Go on with the version of the first page")


def _partitions(store: ScannedStore, question: ScanQuestion, prefix: KeyPrefix | None) -> Sequence[int]:
    """Return the partitions of a scan: the one that it names, the one of its key, or all that are read here."""
    named = question.partition
    if named is not None and named >= store.partitions:
        what = f"there is no partition {named}: the store has {store.partitions}"
        raise BadBoundError(what, where="partition", fix=f"Send a number from 0 to {store.partitions - 1}")
    if named is not None:
        return (named,)
    if prefix is not None and prefix.partition is not None:
        return _everywhere(store) if prefix.partition == ANY_PARTITION else (prefix.partition,)
    return _held(store)


def _everywhere(store: ScannedStore) -> Sequence[int]:
    """Return all partitions: that of a key is not known. Raises the problem of a node that does not hold all."""
    if len(store.held) < store.partitions:
        what = (
            f"a key of {store.name} may be in any of its {store.partitions} partitions, of which this node lacks some"
        )
        raise ProblemError(Problem(ProblemType.NOT_OWNER, what, fix="Ask a router"))
    return store.held


def _held(store: ScannedStore) -> Sequence[int]:
    if not store.held:
        what = f"this node holds no partition of {store.name}"
        raise ProblemError(Problem(ProblemType.NOT_OWNER, what, fix="Ask a router"))
    return store.held


def _asker_of(authorization: Authorization, store: ScannedStore) -> str:
    """Return whom, and what, a question is asked: a node whose partitions have changed cannot resume a scan."""
    held = "" if len(store.held) == store.partitions else repr(tuple(store.held))
    return f"{authorization.principal.name} {held}"
