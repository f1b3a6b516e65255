"""The calls of routers: what they ask, decoded, and the reader that they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from fastapi import Request

from understudy_node.questions.lookup.hop_lookups import not_here, outdated
from understudy_node.questions.lookup.reads import Reads
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import StoreName
from understudy_shared.http.edge import read_body
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.questions.lookup.hop import MAX_HOP_BYTES
from understudy_shared.reads.hop_fields import BadHopError

T = TypeVar("T")


def asked_reader(
    reads: Reads, *, application_id: str, lineage: str, store: str, layout: str, partitions: int
) -> StoreReader | Problem:
    """Return the reader of a store, or why this node does not answer what a router asks of it."""
    try:
        generation = reads.generation()
    except UnderstudyError as error:
        return problem_of(error)
    if application_id != reads.application_id:
        return not_here(f"this node serves {reads.application_id}, not {application_id}")
    if lineage != generation.lineage:
        return Problem(
            ProblemType.LINEAGE_CHANGED,
            f"this node follows lineage {generation.lineage}, not {lineage}",
            where="lineage",
            fix="Read the catalogue again",
        )
    reader = generation.readers.get(StoreName(store))
    if reader is None:
        known = ", ".join(sorted(generation.readers)) or "none"
        detail = f"there is no store {store!r}"
        return Problem(ProblemType.UNKNOWN_STORE, detail, where="store", fix=f"Stores here: {known}")
    if layout != reader.layout:
        return outdated(f"keys of {store} are encoded and placed by layout {reader.layout} here")
    if partitions != reader.partitions:
        return not_here(f"{store} has {reader.partitions} partitions here, not {partitions}")
    return reader


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
