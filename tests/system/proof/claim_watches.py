"""Claims (j) and (k): watches tell each change once and in order, and clients read the truth by each way (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

import orjson
from tests.system.proof.claim_answers import wrong_with_answer
from tests.system.proof.claim_availability import may_not_open
from tests.system.proof.claims import Case, ClaimResult, Tally
from tests.system.proof.client_ways import DIRECTLY, WAYS
from tests.system.proof.history import Told, Watch
from tests.system.proof.schedule import MENU
from tests.system.proof.truth_of_state import Truth, Value

VALUES = frozenset(("snapshot", "value", "deleted"))
NEEDED = ("sync", "async", "of a prefix", "gone on", "changes", "positions")

LATE_MS = 30_000.0
"""Age of a commit whose changes a watch must have told at its end, whatever is broken: faults last for 20 s at most, or
leave another replica.
"""


def watches_tell_each_change(case: Case) -> ClaimResult:
    """(j) Each event is Spark's state at its version; those of a key rise, and tell versions that changed it. A
    position says that all changes up to it were told: none is missing then, unless a `coalesced` counts it, and none
    comes behind it. Versions are passed over only where a changelog is lost. No watch fails, unless it begins while the
    store fails and needs it, and none stays half a minute behind.
    """
    says = "a watch tells each version that changed a key once, in order, before its position"
    tally = Tally(case, "watches", says, NEEDED, needs_each_kind=False)
    changes = {store: Changes(case.truth, store) for store in case.truth.stores}
    for watch in case.history.watches:
        _look(tally, watch)
        for at_ms, wrong in _wrong_with(case, watch, changes[watch.store]):
            what = f"prefix {watch.prefix}" if watch.prefix is not None else f"{len(watch.keys)} keys"
            name = f"{watch.way} watch {watch.number} of {what} behind {watch.after}"
            text = f"{name} at {at_ms - case.began_ms:.0f} ms: {wrong}; faults then: {case.faults_at(at_ms, at_ms)}"
            tally.accuse_at(at_ms, text, watch.store)
    return tally.result()


def clients_read_the_truth(case: Case) -> ClaimResult:
    """(k) Through both clients, by routers and directly, an answer is Spark's state at the version that it states."""
    says = "both clients give the truth, by routers and directly"
    needed = WAYS if case.is_scattered else (*WAYS, DIRECTLY)  # clients ask routers for keys that may be anywhere
    tally = Tally(case, "clients", says, needed, needs_each_kind=False)
    for read in case.answers():
        if not read.way:
            continue
        tally.looked(read.way, read.store)
        if read.router == DIRECTLY:
            tally.looked(DIRECTLY, read.store)
        for wrong in wrong_with_answer(case, read):
            tally.accuse(read, f"{read.way}: {wrong}")
    return tally.result()


class Changes:
    """The changes of a store by the truth: by version the keys that it gave another value, or took away."""

    def __init__(self, truth: Truth, store: str) -> None:
        found: defaultdict[int, list[str]] = defaultdict(list)
        for key in truth.keys(store):
            before: Value | None = None
            for version, value in truth.changes(store, key):
                if value != before:
                    found[version].append(key)
                before = value
        self._versions = sorted(found)
        self._keys = found

    def between(self, after: int, until: int) -> Iterator[tuple[int, str]]:
        """Yield each change behind a version, up to another one."""
        for version in self._versions[bisect_right(self._versions, after) : bisect_right(self._versions, until)]:
            for key in self._keys[version]:
                yield version, key

    def is_any(self, key: str, first: int, last: int) -> bool:
        """Whether one of these versions changed a key."""
        return any(key in self._keys.get(version, ()) for version in range(first, last + 1))


def _look(tally: Tally, watch: Watch) -> None:
    tally.looked(watch.way, watch.store)
    if watch.prefix is not None:
        tally.looked("of a prefix", watch.store)
    if watch.after is not None:
        tally.looked("gone on", watch.store)
    for event in watch.events:
        if event.kind in ("value", "deleted"):
            tally.looked("changes", watch.store)
        if event.position is not None:
            tally.looked("positions", watch.store)
        if event.kind == "coalesced":
            tally.looked("coalesced", watch.store)


def _wrong_with(case: Case, watch: Watch, changes: Changes) -> Iterator[tuple[float, str]]:
    """Yield what is wrong with a watch, and when it was seen."""
    if watch.outcome == "failed" and not _may_be_refused(case, watch):
        yield watch.ended_ms, f"failed: {watch.detail}"
    judged = _Judged(case, watch, changes)
    for event in watch.events:
        for wrong in judged.take(event):
            yield event.at_ms, wrong
    late_ms = watch.ended_ms - LATE_MS
    if watch.began_ms < late_ms and (missing := judged.missing(case.commits.committed_by(late_ms))):
        yield watch.ended_ms, f"has not told {missing[:3]}, committed {LATE_MS:.0f} ms before its end"


def _may_be_refused(case: Case, watch: Watch) -> bool:
    """Whether a watch could not begin because the store failed. One that goes on needs what it missed from there, and
    one of a prefix reads all changes from there.
    """
    needs_store = watch.after is not None or watch.prefix is not None
    is_unavailable = watch.detail.startswith(("DeadlineError", "UnavailableError")) and not watch.events
    return needs_store and is_unavailable and bool(may_not_open(case, watch.began_ms, watch.ended_ms))


class _Judged:
    """A watch so far: what it told of each key, and up to which version it said that all was told."""

    def __init__(self, case: Case, watch: Watch, changes: Changes) -> None:
        self._case, self._watch, self._changes = case, watch, changes
        self._since: dict[str, int] = {}
        """The version behind which changes of a key are to be told."""
        self._last: dict[str, int] = {}
        self._told: set[tuple[str, int]] = set()
        self._skipped: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._passed_over: dict[tuple[str, int], int] = {}
        """The first of the versions that were passed over, by a key and the last one, at which the key has what any of
        them gave it.
        """
        self._position = watch.after
        self._snapshot: dict[str, Value | None] = {}

    def take(self, event: Told) -> Iterator[str]:
        """Take an event in, and yield what is wrong with it."""
        if event.kind in VALUES and event.version is not None:
            yield from self._value(event, event.version)
        elif event.kind == "coalesced":
            yield from self._coalesced(event)
        elif event.kind == "reset":
            yield "the history is said to be another one"
        if event.position is not None and event.position != self._position:
            yield from self._moved(event.position)

    def _value(self, event: Told, version: int) -> Iterator[str]:
        key, truth = event.key, self._case.truth
        if not self._is_watched(key):
            yield f"{key} is not watched"
            return
        try:
            true = truth.at(self._watch.store, key, version)
        except LookupError as error:
            yield str(error)
            return
        if event.value != true:
            yield f"{event.kind} of {key} at {version} is {event.value!r:.200}, Spark has {true!r:.200}"
        if self._case.commits.surely_uncommitted(version, event.at_ms):
            yield f"{key} at {version} was told before its commit"
        if event.kind == "snapshot":
            if key in self._last or self._watch.after is not None:
                yield f"a snapshot of {key} at {version} comes behind its beginning"
            self._since[key] = self._last[key] = version
            self._snapshot[key] = event.value
            return
        if version <= self._last.get(key, 0):
            yield f"{key} at {version} comes behind its version {self._last[key]}"
        first = self._passed_over.get((key, version), version)
        if self._watch.prefix is None and not self._changes.is_any(key, first, version):
            yield f"version {version} did not change {key}"
        if self._position is not None and version <= self._position:
            yield f"{key} at {version} comes behind the position {self._position}"
        self._last[key] = version
        self._told.add((key, version))

    def _coalesced(self, event: Told) -> Iterator[str]:
        assert event.first_version is not None
        assert event.version is not None
        if event.changes is None and not self._may_pass_over(event.at_ms):
            yield f"versions {event.first_version} to {event.version} of {event.key} were passed over"
        elif event.changes is None:
            self._passed_over[event.key, event.version] = event.first_version
        self._skipped[event.key].append((event.first_version, event.version))

    def _may_pass_over(self, at_ms: float) -> bool:
        active = self._case.faults.during(at_ms, at_ms)
        return any(each.fault in MENU and MENU[each.fault].may_pass_over for each in active)

    def _moved(self, position: int) -> Iterator[str]:
        """Judge a position: it goes forward, and nothing up to it is missing."""
        truth = self._case.truth
        if not truth.first <= position <= truth.last:
            yield f"position {position} is none of versions {truth.first} to {truth.last}"
        elif self._position is None:
            yield from self._begun(position)
            if self._watch.prefix is not None:  # what is not among the snapshots was not there
                self._position = position
                return
        elif position < self._position:
            yield f"the position goes back from {self._position} to {position}"
        if missing := self.missing(position):
            yield f"position {position} comes before {len(missing)} changes: {missing[:3]}"
        self._position = max(position, self._position or 0)

    def _begun(self, position: int) -> Iterator[str]:
        """Judge the snapshots: of a prefix they are all keys that are there."""
        if self._watch.prefix is None:
            if lost := [key for key in self._watch.keys if key not in self._snapshot]:
                yield f"position {position} comes before snapshots of {lost[:3]}"
            return
        state = self._case.truth.state(self._watch.store, position)
        lost = [key for key in state if self._is_watched(key) and key not in self._snapshot]
        if lost:
            yield f"{len(lost)} keys are not among the snapshots at {position}: {lost[:3]}"

    def missing(self, until: int) -> list[tuple[str, int]]:
        """The changes up to a version that were not told, behind the last position or a key's beginning."""
        after = self._position if self._position is not None else 0
        return [
            (key, version)
            for version, key in self._changes.between(after, until)
            if self._is_watched(key) and version > self._since.get(key, after) and not self._has_told(key, version)
        ]

    def _has_told(self, key: str, version: int) -> bool:
        if (key, version) in self._told:
            return True
        return any(first <= version <= last for first, last in self._skipped.get(key, ()))

    def _is_watched(self, key: str) -> bool:
        if self._watch.prefix is None:
            return key in self._watch.keys
        wanted: list[object] = orjson.loads(self._watch.prefix)
        return bool(orjson.loads(key)[: len(wanted)] == wanted)
