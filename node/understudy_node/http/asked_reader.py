"""The reader that a router asks for: of exactly its own application, lineage, store and layout."""

from __future__ import annotations

from understudy_node.http.hop_lookups import not_here, outdated
from understudy_node.http.reads import Reads
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import StoreName
from understudy_shared.http.problems import Problem, ProblemType, problem_of


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
