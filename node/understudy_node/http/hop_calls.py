"""The calls of routers: what they ask, decoded, and the reader that they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from fastapi import Request

from understudy_node.http.asked_reader import asked_reader
from understudy_node.http.reads import Reads
from understudy_node.stores.lookup import StoreReader
from understudy_shared.http.edge import read_body
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.hop import MAX_HOP_BYTES
from understudy_shared.reads.hop_fields import BadHopError

T = TypeVar("T")


class StoreHop(Protocol):
    """A call that is about one store, by the layout that placed and encoded its keys."""

    @property
    def application(self) -> str: ...

    @property
    def lineage(self) -> str: ...

    @property
    def store(self) -> str: ...

    @property
    def layout(self) -> str: ...

    @property
    def partitions(self) -> int: ...


async def read_hop(request: Request, decode: Callable[[bytes], T]) -> T:
    """Read the body of a call, and decode it. Raises the problem of a malformed one."""
    body = await read_body(request.receive, max_bytes=MAX_HOP_BYTES)
    try:
        return decode(body)
    except BadHopError as error:
        raise ProblemError(Problem(ProblemType.BAD_REQUEST, error.what, error.where, error.fix)) from None


def reader_asked(reads: Reads, hop: StoreHop) -> StoreReader:
    """Return the reader that a router asks for. Raises the problem of one that is not exactly that."""
    reader = asked_reader(
        reads,
        application_id=hop.application,
        lineage=hop.lineage,
        store=hop.store,
        layout=hop.layout,
        partitions=hop.partitions,
    )
    if isinstance(reader, Problem):
        raise ProblemError(reader)
    return reader
