"""The request of a batch, its keys, and its answer, the same for nodes and routers (pure).

An answer is built from bytes. Results of one partition share some members: the long form repeats them in every result;
the compact form has them once, in `reads`, and each result has the index of its read.

Spark may have put a key of a scattered store into any partition, so all partitions are asked, and their answers become
one. If the plan of the query has changed over the years, two partitions may have the key. Spark continues with one of
them, depending on its current plan. So the answer is a problem, and no choice is made here. Answers at different
versions do not prove that a key is absent: it is unsettled until all partitions are asked at the oldest version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

import orjson

from understudy_shared.auth.permissions import require_printed_key
from understudy_shared.auth.principals import EVERY_KEY, KeyScope
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import clipped
from understudy_shared.http.lookup_requests import ReadParams, encoded_key, pop_longs
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import parse_query
from understudy_shared.questions.lookup.hop import (
    ABSENT,
    FOUND,
    NO_PARTITION,
    PROBLEM,
    HopOutcome,
    indexes_by_partition,
)
from understudy_shared.reads.bound_parsing import parse_flag
from understudy_shared.reads.bounds import MAX_BATCH_KEYS, Bound, bound_at, version_of
from understudy_shared.reads.tokens import Position, decode_position
from understudy_shared.server.direct import Exchange
from understudy_shared.spark.key_codec import KeyCodec

_FORM = 'Send {"keys": [["a", 1], {"column": "b"}], "bounds": {"max_lag": 5}}; bounds may be left out'


class KeyBatch(NamedTuple):
    """A batch of keys of one store. Its client may read the keys in `scope`, and gets the answer through `exchange`."""

    store: str
    keys: Sequence[object]
    params: ReadParams
    scope: KeyScope
    exchange: Exchange
    is_compact: bool = False


class BatchKeys(NamedTuple):
    """The keys of a batch as columns, in their order: partition, UnsafeRow bytes, JSON. `problems` are by index."""

    partitions: list[int]
    rows: list[bytes]
    printed: list[bytes]
    problems: dict[int, Problem]

    def extend(self, others: BatchKeys) -> None:
        """Append the keys that follow."""
        first = len(self.rows)
        self.problems.update({first + index: problem for index, problem in others.problems.items()})
        self.partitions.extend(others.partitions)
        self.rows.extend(others.rows)
        self.printed.extend(others.printed)

    def by_partition(self) -> dict[int, list[int]]:
        """Return the indexes of the keys of each partition."""
        return indexes_by_partition(self.partitions)


def batch_form(query: bytes) -> tuple[bool, bool]:
    """Return whether the answer to a batch is compact, and whether it has long numbers as text. Raises a problem for
    any other parameter.
    """
    parameters = parse_query(query)
    form = parse_flag(parameters, "compact"), pop_longs(parameters)
    unknown = parameters.keys() - {"compact"}
    if unknown:
        raise ProblemError(
            Problem(
                ProblemType.BAD_REQUEST,
                f"a batch has no query parameter {min(unknown)!r}",
                where="query",
                fix="Send bounds in the body; compact=true and longs=string here",
            )
        )
    return form


def parse_batch(body: bytes) -> tuple[list[object], ReadParams]:
    """Parse the envelope of a batch: `{"keys": [...], "bounds": {...}}`."""
    try:
        envelope = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProblemError(
            Problem(ProblemType.BAD_REQUEST, f"the body is not JSON: {error}", where="body", fix=_FORM)
        ) from None
    if not isinstance(envelope, dict) or not isinstance(envelope.get("keys"), list):
        raise ProblemError(Problem(ProblemType.BAD_REQUEST, "the body has no list of keys", where="body", fix=_FORM))
    unknown = sorted(set(envelope) - {"keys", "bounds"})
    bounds = envelope.get("bounds", {})
    if unknown or not isinstance(bounds, dict):
        what = f"the member {clipped(unknown[0])} is unknown" if unknown else "bounds is not an object"
        raise ProblemError(Problem(ProblemType.BAD_REQUEST, what, where="body", fix=_FORM))
    if bounds.get("cursor") is not None:
        what = "a batch takes no cursor: a cursor belongs to one key"
        fix = "Send it with a lookup of that key"
        raise ProblemError(Problem(ProblemType.BAD_BOUND, what, where="cursor", fix=fix))
    keys = envelope["keys"]
    if len(keys) > MAX_BATCH_KEYS:
        detail = f"the batch has {len(keys)} keys, above {MAX_BATCH_KEYS}"
        raise ProblemError(Problem(ProblemType.TOO_LARGE, detail, where="keys", fix="Send several batches"))
    return keys, bounds


def resolve_keys(
    codec: KeyCodec, keys: Sequence[object], partitions: int, max_key_bytes: int, scope: KeyScope = EVERY_KEY
) -> BatchKeys:
    """Parse, encode, place and print keys: by columns if possible, else one by one.

    A key outside of `scope` gets a problem.
    """
    # A scope is compared with each printed key, so columns would save nothing then.
    encoded = codec.key_columns.encode(keys, partitions) if scope.prefixes is None else None
    if encoded is not None and max(map(len, encoded.rows)) <= max_key_bytes:
        return BatchKeys(*encoded, {})
    resolved = BatchKeys([], [], [], {})
    for index, key in enumerate(keys):
        try:
            row = codec.parse_json(key)
            data = encoded_key(codec, row, max_key_bytes)
            partition, printed = codec.partition(row, partitions), orjson.dumps(codec.to_json(data))
            require_printed_key(scope, printed)
        except UnderstudyError as error:
            resolved.problems[index] = problem_of(error)
            partition, data, printed = NO_PARTITION, b"", b""
        resolved.partitions.append(partition)
        resolved.rows.append(data)
        resolved.printed.append(printed)
    return resolved


class BatchAnswer:
    """The builder of the answer to one batch.

    The result of a found or absent key is `found` or `absent`, the key's JSON, a comma, the members that describe the
    value, and the end that `end_of` returns. The result of a problem is `problem_result`.
    """

    def __init__(self, json_name: bytes, *, is_compact: bool) -> None:
        """Set the name of the store, as JSON, and the form of the answer."""
        store = b"" if is_compact else b'"store":%b,' % json_name
        self.found = b'{"status":200,%b"key":' % store
        self.absent = b'{"status":404,%b"key":' % store
        self._json_name = json_name
        self._is_compact = is_compact
        self._ends: dict[bytes, bytes] = {}

    def end_of(self, tail: bytes) -> bytes:
        """Return the end of a result. `tail` has the members for source and age, and the closing brace."""
        if not self._is_compact:
            return tail.rstrip()
        end = self._ends.get(tail)
        if end is None:
            end = self._ends[tail] = b'"read":%d}' % len(self._ends)
        return end

    def result(self, printed: bytes, found: HopOutcome | Problem) -> bytes:
        """Return the result of a key, which is `printed` as JSON."""
        if isinstance(found, Problem):
            return problem_result(found)
        head = self.found if found.kind == FOUND else self.absent
        return b"".join((head, printed, b",", found.body, self.end_of(found.tail)))

    def body(self, results: Sequence[bytes]) -> bytes:
        """Return the whole answer."""
        return self._whole(b",".join(results))

    def of_columns(
        self, kinds: Sequence[int], printed: Sequence[bytes], bodies: Sequence[bytes], tails: Sequence[bytes]
    ) -> bytes:
        """Return the whole answer from columns of the results' parts, without an object per key.

        The body of a problem is its whole result.
        """
        heads = (b"," + self.found, b"," + self.absent, b",")
        # One end per read, in order of appearance: compact results name their read by its number.
        ends = {tail: self.end_of(tail) for tail in dict.fromkeys(tails) if tail}
        commas: Iterable[bytes] = repeat(b",", len(kinds))
        if PROBLEM in kinds:
            ends[b""] = b""
            printed = [b"" if kind == PROBLEM else key for kind, key in zip(kinds, printed, strict=True)]
            commas = [b"" if kind == PROBLEM else b"," for kind in kinds]
        found = zip(map(heads.__getitem__, kinds), printed, commas, bodies, map(ends.__getitem__, tails), strict=True)
        parts = list(chain.from_iterable(found))
        parts[:1] = [part[1:] for part in parts[:1]]  # no comma before the first result, if there is one
        return self._whole(b"".join(parts))

    def _whole(self, joined: bytes) -> bytes:
        """Return the answer around results that are joined by commas."""
        if not self._is_compact:
            return b'{"results":[%b]}\n' % joined
        reads = b",".join([b"{" + tail.rstrip() for tail in self._ends])
        return b'{"store":%b,"reads":[%b],"results":[%b]}\n' % (self._json_name, reads, joined)


def problem_result(problem: Problem) -> bytes:
    """Return a problem as the result of a key; the result contains the problem's status."""
    return problem.body().rstrip()


NOT_FOUND: Final = b'"found":false,'
"""The members for an absent key. If all values of a key have expired, it has other members, and counts as present."""

_PLACE = re.compile(rb'"partition":(\d+),"version":(\d+),')
"""The beginning of every tail."""

_POSITION = re.compile(rb'"position":"([^"]+)"')


class Unsettled(NamedTuple):
    """A key that no partition has, read at different versions. All partitions are asked again at `oldest`."""

    oldest: Position


def ambiguous_key(store: str, partitions: Sequence[int]) -> Problem:
    """Return the problem of a key that several partitions have."""
    return Problem(
        ProblemType.AMBIGUOUS_KEY,
        f"partitions {' and '.join(map(str, partitions))} of {store} have this key: the query placed its keys in"
        " another way before, and which of the values it continues with depends on its plan",
        where="key",
        fix='Scan with the key as prefix, which shows both; see docs/troubleshooting.md, "ambiguous-key"',
        extra={"partitions": list(partitions)},
    )


def answer_of(store: str, parts: Sequence[HopOutcome | Problem]) -> HopOutcome | Problem | Unsettled:
    """Return the answer for a key from the answers of all partitions, in the order of partitions.

    Every partition must have answered: a key that is absent from one may be in another.
    """
    there: list[int] = []
    absent: list[tuple[int, int]] = []
    for partition, part in enumerate(parts):
        if isinstance(part, Problem):
            return in_partition(part, partition)
        if part.kind == FOUND or part.body != NOT_FOUND:
            there.append(partition)
        elif not there:
            absent.append((_version(part.tail), partition))
    if len(there) > 1:
        return ambiguous_key(store, there)
    if there:
        only = parts[there[0]]
        assert isinstance(only, HopOutcome), "problems were returned"
        return only
    oldest = parts[min(absent)[1]]
    assert isinstance(oldest, HopOutcome), "problems were returned"
    if min(absent)[0] != max(absent)[0]:
        return Unsettled(_position(oldest.tail))
    return HopOutcome(ABSENT, NOT_FOUND, nowhere(oldest.tail))


def at_one_version(oldest: Position, bound: Bound) -> Bound:
    """Return the bound for asking for an unsettled key again. The bounds of lag are left out: that version met them."""
    version = version_of(oldest.version, oldest.committed_at_us)
    at = bound_at(oldest.application_id, oldest.lineage, version)
    return replace(at, require_active=bound.require_active, wait_ms=bound.wait_ms, selection=bound.selection)


def history_of(store: str, pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge pages of all partitions, up to the end of the shortest. Raises a problem if several have the key."""
    last = min(page["to"] if page["next_from"] is None else page["next_from"] - 1 for page in pages)
    for page in pages:
        page["versions"] = [each for each in page["versions"] if each["version"] <= last]
    there = [page for page in pages if any(each["found"] or "expired" in each for each in page["versions"])]
    if len(there) > 1:
        raise ProblemError(ambiguous_key(store, [page["partition"] for page in there]))
    found = there[0] if there else min(pages, key=lambda page: int(page["to"]))
    if not there:
        versions = [{**each, "partition": None} for each in found["versions"]]
        found = {**found, "partition": None, "from": max(page["from"] for page in pages), "versions": versions}
    return {**found, "next_from": last + 1 if last < found["to"] else None}


def in_partition(problem: Problem, partition: int) -> Problem:
    """Return the same problem with the number of the partition that raised it."""
    where = f"partition {partition}; {problem.where}" if problem.where else f"partition {partition}"
    return replace(problem, where=where, extra={"partition": partition, **problem.extra})


def nowhere(tail: bytes) -> bytes:
    """Return a tail whose partition is null, for a key that no partition has."""
    return _PLACE.sub(rb'"partition":null,"version":\2,', tail, count=1)


def _position(tail: bytes) -> Position:
    found = _POSITION.search(tail)
    assert found is not None, "every answer has its position"
    return decode_position(found[1].decode())


def _version(tail: bytes) -> int:
    place = _PLACE.match(tail)
    return 0 if place is None else int(place[2])
