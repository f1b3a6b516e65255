"""Claims (a), (b) and (e): values are the truth, sessions never go back, replicas converge (pure)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.system.proof.base_counts import MANY_BASES
from tests.system.proof.claims import Case, ClaimResult, Tally
from tests.system.proof.history import FinalReplica, Read

MAX_SHOWN_CHARS = 200

LATE_BASES = f"after {MANY_BASES} replaced bases"
"""Needed of a run in which bases live for seconds: what a node remembers of a base must not outlive it."""


def answers_are_the_truth(case: Case) -> ClaimResult:
    """(a) Found or absent, the answer is the truth at the version it states; that version was committed by the end of
    the read, at the time that it states; and all answers for a key name one partition, or none where a scattered key is
    absent.
    """
    needed = ("found", "absent", *((LATE_BASES,) if case.needs_late_bases else ()))
    tally = Tally(case, "answers", "every answer is Spark's state at the version it states", needed)
    partitions = _partitions(read for read in case.answers() if read.partition is not None or not case.is_scattered)
    for read in case.answers():
        tally.looked(read.outcome, read.store)
        if read.pages > 1:
            tally.looked("in pages", read.store)
        if case.bases.replaced(read.node, read.began_ms) > MANY_BASES:
            tally.looked(LATE_BASES, read.store)
        for wrong in wrong_with_answer(case, read):
            tally.accuse(read, wrong)
        is_nowhere = case.is_scattered and read.outcome == "absent" and read.partition is None
        if not is_nowhere and read.partition != partitions[read.store, read.key]:
            others = partitions[read.store, read.key]
            tally.accuse(read, f"answered as partition {read.partition}, other answers for the key as {others}")
    return tally.result()


def wrong_with_answer(case: Case, read: Read) -> Iterator[str]:
    """What is wrong with an answer by itself."""
    if read.version is None:
        yield "the answer states no version"
        return
    if case.commits.surely_uncommitted(read.version, read.ended_ms):
        yield f"version {read.version} was not committed yet when its answer had come"
    try:
        true = case.truth.at(read.store, read.key, read.version)
    except LookupError as error:
        yield str(error)
        return
    said = read.value if read.outcome == "found" else None
    if said != true:
        yield f"answered {_shown(said)}, but Spark has {_shown(true)}"
    commit = case.commits.get(read.version)
    if commit is not None and read.committed_at_us not in (None, commit.mtime_us):
        yield f"committed at {read.committed_at_us} us by the answer, at {commit.mtime_us} us by the file"


def _partitions(reads: Iterable[Read]) -> dict[tuple[str, str], int | None]:
    """The partition that most answers for a key name."""
    named: defaultdict[tuple[str, str], Counter[int | None]] = defaultdict(Counter)
    for read in reads:
        named[read.store, read.key][read.partition] += 1
    return {key: counts.most_common(1)[0][0] for key, counts in named.items()}


def no_session_goes_back(case: Case) -> ClaimResult:
    """(b) A read that carries a position is answered at that version or later, and so never below what the session has
    seen in a read that ended before it began; the position that comes back covers both. Reads of a session that overlap
    have no order."""
    tally = Tally(case, "sessions", "no session that carries its position goes back", ("positions", "later reads"))
    sessions: defaultdict[int, list[Read]] = defaultdict(list)
    for read in case.answers():
        if read.version is not None:
            sessions[read.session].append(read)
    for reads in sessions.values():
        if any(read.bounds.min_version is not None for read in reads):
            _judge_session(reads, tally)
    return tally.result()


def _judge_session(reads: list[Read], tally: Tally) -> None:
    ended = sorted(reads, key=lambda read: read.ended_ms)
    newest, newest_read, done = 0, "", 0
    for read in sorted(reads, key=lambda read: read.began_ms):
        while ended[done].ended_ms <= read.began_ms and ended[done] is not read:
            version = ended[done].version or 0
            if version > newest:
                newest, newest_read = version, f"{ended[done].session}/{ended[done].seq}"
            done += 1
        carried, version = read.bounds.min_version, read.version or 0
        if carried is None:
            continue
        tally.looked("positions", read.store)
        if newest:
            tally.looked("later reads", read.store)
        if version < carried:
            tally.accuse(read, f"carried position {carried}, answered at {version}")
        elif version < newest:
            tally.accuse(read, f"answered at {version} although {newest_read} had seen {newest}")
        if read.position_version is None or read.position_version < max(version, carried):
            tally.accuse(read, f"position {read.position_version} came back, for version {version} and {carried} sent")


def replicas_converge(case: Case) -> ClaimResult:
    """(e) After healing every replica is at the final version and holds the truth, neither more nor less, and of each
    key there are as many replicas as there have to be."""
    tally = Tally(case, "convergence", "after healing every replica holds the final state", ("replicas", "keys"))
    last = case.commits.last_version
    if not case.truth.first <= last <= case.truth.last:
        tally.accuse_at(0.0, f"the truth covers versions {case.truth.first} to {case.truth.last}, the last is {last}")
        return tally.result()
    keys: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for replica in case.history.finals:
        keys[replica.store, replica.partition].update(replica.values)
    holders: Counter[tuple[str, str]] = Counter()
    for replica in case.history.finals:
        tally.looked("replicas", replica.store)
        holders.update((replica.store, key) for key in replica.values)
        for wrong in _wrong_with(case, replica, last, keys[replica.store, replica.partition], tally):
            role = replica.role or "no role"
            text = f"{replica.node}, {replica.store} partition {replica.partition} ({role}): {wrong}"
            tally.accuse_at(0.0, text, replica.store)
    wanted = case.history.meta.replicas
    for store in case.truth.stores:
        for key in case.truth.state(store, last):
            if holders[store, key] < wanted:
                text = f"{store} {key} is on {holders[store, key]} replicas at {last}, not on {wanted}"
                tally.accuse_at(0.0, text, store)
    return tally.result()


def _wrong_with(case: Case, replica: FinalReplica, last: int, keys: set[str], tally: Tally) -> Iterator[str]:
    """`keys` are those that any replica of the partition has."""
    if replica.version != last:
        yield f"at version {replica.version}, the last is {last} {replica.detail}".rstrip()
        return
    if replica.store not in case.truth.stores:
        yield "the truth does not know this store"
        return
    for key in sorted(keys):
        tally.looked("keys", replica.store)
        said, true = replica.values.get(key), case.truth.at(replica.store, key, last)
        if said != true:
            yield f"{key} is {_shown(said)} at {last}, Spark has {_shown(true)}"


def _shown(value: Any) -> str:
    text = "absent" if value is None else repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
