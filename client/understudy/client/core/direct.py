"""Direct routing: the node that holds a key is asked itself; on any doubt a router answers (pure).

An answer is used when it comes from a running replica of known lag, of this application and lineage, at the node that a
router names as active. Everything else, each problem too, is a reason to ask a router, and to leave that node or
partition alone for a while. So no call fails because of direct routing, and no error of a call comes from a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from understudy.client.core.addresses import NodeAddresses
from understudy.client.core.exchange import Request, Send, Steps, Together
from understudy.client.core.judging import Judged, Meaning, judge
from understudy.client.core.metadata import Metadata
from understudy.client.core.node_answers import (
    Answer,
    Found,
    batch_of,
    is_by_active,
    is_trusted,
    lookup_of,
    usable_results,
)
from understudy.client.core.node_choice import Members, NodeChoice, NodeRead
from understudy.client.core.state import ClientState
from understudy.client.results import RoutingCounts, Why

LOOKUP_S = 1.0
"""The longest time that a node gets for one key, so that one that hangs costs a call no more."""

Target = Callable[[Members], str]
"""The target of a lookup under these bounds."""

Batch = Callable[[Sequence[Any], Members, float], Request]
"""The request of a batch of keys under these bounds, which let the server wait for so many seconds."""


class Direct:
    """The direct routing of one client."""

    def __init__(self, addresses: NodeAddresses, state: ClientState) -> None:
        self._state = state
        self._metadata = Metadata(addresses, state)
        self._choice = NodeChoice(state)

    def __repr__(self) -> str:
        return f"Direct({self._metadata!r}, {self._choice!r})"

    @property
    def counts(self) -> RoutingCounts:
        """The keys that nodes answered, those of routers, and the requests for metadata."""
        return self._choice.counts(self._metadata.fetched)

    def get(
        self, store: str, parts: Sequence[Any], given: Members, target: Target, end_s: float
    ) -> Steps[Answer | None]:
        """Return the answer of the node that holds a key; None where a router has to be asked.

        `end_s` is the end of the call, without what a bound lets the server wait.
        """
        now_s = self._state.now_s()
        entry = self._metadata.of(store, now_s)
        if entry.due_s <= now_s:
            yield from self._metadata.fetch(entry, end_s)
            now_s = self._state.now_s()
        read = self._choice.read_of(entry, parts, given, now_s)
        if isinstance(read, Why):
            self._choice.by_router(read)
            return None
        request = Request("GET", target(read.members), None, read.wait_s)
        judged = judge((yield self._attempt(read, request, end_s, LOOKUP_S)))
        if judged.meaning is Meaning.STALE:
            judged = judge((yield self._attempt(read, request, end_s, LOOKUP_S)))
        answer = lookup_of(judged.document, store)
        if answer is None or not is_trusted(answer, read.placement):
            self._failed(read, judged, (0,))
            return None
        self._succeeded(read, (answer,), (0,))
        return answer

    def get_many(self, store: str, keys: Sequence[Any], given: Members, batch: Batch, end_s: float) -> Steps[Found]:
        """Return the results that nodes gave; routers have to be asked for the other keys."""
        now_s = self._state.now_s()
        entry = self._metadata.of(store, now_s)
        if entry.due_s <= now_s:
            yield from self._metadata.fetch(entry, end_s)
        reads = self._choice.reads_of(entry, keys, given)
        calls = [self._ask_many(read, store, keys, batch, end_s) for read in reads]
        if len(calls) == 1:
            return (yield from calls[0])
        found: Found = {}
        if calls:
            outcome = yield Together(tuple(calls))
            assert isinstance(outcome, tuple)
            for part in outcome:
                found.update(part)
        return found

    def _ask_many(self, read: NodeRead, store: str, keys: Sequence[Any], batch: Batch, end_s: float) -> Steps[Found]:
        """Ask one node for its keys of a batch, and return the results that can be used."""
        places = list(read.partitions)
        request = batch([keys[at] for at in places], read.members, read.wait_s)
        judged = judge((yield self._attempt(read, request, end_s, end_s)))
        if judged.meaning is Meaning.STALE:
            judged = judge((yield self._attempt(read, request, end_s, end_s)))
        answer = batch_of(judged.document, store, len(places))
        found, shared = ({}, []) if answer is None else usable_results(answer, places, read.placement)
        if found:
            self._succeeded(read, shared, [*found])
        if len(found) < len(places):
            self._failed(read, judged, [at for at in places if at not in found])
        return found

    def _attempt(self, read: NodeRead, request: Request, end_s: float, limit_s: float) -> Send:
        """Return the step to ask a node. Half of the time left is kept for a router."""
        now_s = self._state.now_s()
        until_s = now_s + read.wait_s + min(limit_s, max(0.0, end_s - now_s) / 2)
        return Send(read.endpoint, self._state.named(request), self._state.headers(request), until_s)

    def _succeeded(self, read: NodeRead, shared: Sequence[Answer], places: Sequence[int]) -> None:
        self._choice.succeeded(read, places)
        for each in shared:
            self._state.position.observe(each["position"])
            if not is_by_active(each):  # another node has become active
                self._metadata.changed(read.entry)

    def _failed(self, read: NodeRead, judged: Judged, places: Sequence[int]) -> None:
        if self._choice.failed(read, judged, places):
            self._metadata.changed(read.entry)
