"""Keys of a scattered store at a node: each is looked up in all partitions, if this node holds all of them."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import cast

from understudy_node.replica.readings import Reading
from understudy_node.stores.lookup import Hidden, LookupAnswer, ResolvedKey, Said, StoreReader
from understudy_shared.http.problems import Problem, ProblemType
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.hop_columns import ABSENT, FOUND, HopOutcome
from understudy_shared.server.scattered import NOT_FOUND, answer_of, in_partition


def find_everywhere(
    reader: StoreReader, rows: Sequence[bytes], bound: Bound, readings: MutableMapping[int, Reading | Problem]
) -> Sequence[HopOutcome | Problem]:
    """Return what all partitions together say of each of these keys. `readings` has the versions of partitions that
    were read before, and gets the others.
    """
    if len(reader.replicas) < reader.partitions:
        return [_not_all_held(reader)] * len(rows)
    found: list[Sequence[HopOutcome | Problem]] = []
    for partition in range(reader.partitions):
        reading = readings.get(partition)
        if reading is None:
            reading = readings[partition] = reader.read_from(partition, bound)
        if isinstance(reading, Problem):
            return [in_partition(reading, partition)] * len(rows)
        tail = reading.tail
        found.append([_outcome(each, tail) for each in reader.find_many(rows, reading, partition, bound.selection)])
    return [answer_of(reader.store.name, parts) for parts in zip(*found, strict=True)]


def look_up_everywhere(reader: StoreReader, key: ResolvedKey, bound: Bound) -> LookupAnswer | Problem:
    """Answer one key inside `bound`."""
    (found,) = find_everywhere(reader, [key.stored[len(reader.row_prefix) :]], bound, {})
    if isinstance(found, Problem):
        return found
    body = b'{"store":%b,"key":%b,%b%b' % (reader.json_name, key.json, found.body, found.tail)
    return LookupAnswer(200 if found.kind == FOUND else 404, body)


def _outcome(said: Said, tail: bytes) -> HopOutcome | Problem:
    if type(said) is bytes:
        return HopOutcome(FOUND, said, tail)
    if isinstance(said, Hidden):
        return HopOutcome(ABSENT, said.members, tail)
    return HopOutcome(ABSENT, NOT_FOUND, tail) if said is None else cast(Problem, said)


def _not_all_held(reader: StoreReader) -> Problem:
    return Problem(
        ProblemType.NOT_OWNER,
        f"a key of {reader.store.name} may be in each of its {reader.partitions} partitions: it is scattered, and this"
        " node does not hold all of them",
        where=f"partitions held: {', '.join(map(str, sorted(reader.replicas))) or 'none'}",
        fix="Ask a router",
    )
