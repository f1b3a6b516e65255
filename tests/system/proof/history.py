"""What a run of the proof recorded: each kind of record, and all of a run together.

One machine records: every `_ms` is its monotonic clock, in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["found", "absent", "refused", "failed"]
ScanOutcome = Literal["whole", "refused", "failed"]
FaultPhase = Literal["injected", "healed", "skipped"]
Value = dict[str, Any]
"""The JSON of a stored value, as an answer has it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a reader sent. `min_version` is the version of the position token it carried, `version` the one it named."""

    max_lag: int | None = None
    max_staleness_ms: int | None = None
    min_version: int | None = None
    require_active: bool = False
    unknown_lag: Literal["serve", "refuse"] | None = None
    wait_ms: int = 0
    version: int | None = None

    @property
    def limits_lag(self) -> bool:
        return self.max_lag is not None or self.max_staleness_ms is not None

    @property
    def serves_unknown_lag(self) -> bool:
        """Without a word of its own, a reader with a lag bound refuses unknown lag."""
        return not self.limits_lag if self.unknown_lag is None else self.unknown_lag == "serve"


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Read:
    """One lookup as its reader saw it.

    `began_ms` is before the request was sent, `ended_ms` after the last byte of its answer came, whichever router it
    went through in the end (`router`). `outcome`: `refused` is a typed problem (`problem` is its slug, `candidates` are
    pairs of node and reason); `failed` is everything else that is no answer: no connection to any router, no reply in
    time, a reply that does not parse, an untyped error. `key` is the canonical JSON array of the key's columns.

    What follows is what the answer states; None where it states null or nothing. `role` is `active` or `standby`,
    `node` the node that answered, `position_version` the version in the token that came with it. Of a list that was
    read in `pages` the value is all of them, the rest what the first one states.
    """

    session: int
    seq: int
    began_ms: float
    ended_ms: float
    router: str
    store: str
    key: str
    bounds: Bounds
    status: int
    outcome: Outcome
    problem: str = ""
    candidates: tuple[tuple[str, str], ...] = ()
    value: Value | None = None
    version: int | None = None
    committed_at_us: int | None = None
    offset_lag: int | None = None
    time_lag_ms: int | None = None
    partition: int | None = None
    node: str = ""
    role: str = ""
    position_version: int | None = None
    detail: str = ""
    pages: int = 1
    way: str = ""
    """The Python client by which it came: `sync`, `async`, and by direct routing `sync direct`, `async direct`."""

    @property
    def answered(self) -> bool:
        return self.outcome in ("found", "absent")

    @property
    def took_ms(self) -> float:
        return self.ended_ms - self.began_ms


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan of a store as its reader saw it, page after page: `whole` when it came to its end.

    `asked_version` is the version that the reader named, `versions` are those that the pages state. `below`: only keys
    whose last column is a text below that. `rows` are pairs of a key, as a canonical JSON array, and what it has.
    """

    number: int
    began_ms: float
    ended_ms: float
    store: str
    asked_version: int | None
    below: str | None
    outcome: ScanOutcome
    problem: str = ""
    candidates: tuple[tuple[str, str], ...] = ()
    detail: str = ""
    pages: int = 0
    versions: tuple[int, ...] = ()
    rows: tuple[tuple[str, Value], ...] = ()
    is_export: bool = False
    """Whether it came as one stream, `pages` being the streams that it took."""

    @property
    def bounds(self) -> Bounds:
        return Bounds(version=self.asked_version)


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """One read of keys of several stores at one version, as its reader saw it.

    `asked_version` is the version that the reader named, `version` the one of the answer, `snapshot` its token.
    `results` are store, key, version, value (None: absent), and the slug of a problem in place of both.
    """

    number: int
    began_ms: float
    ended_ms: float
    asked_version: int | None
    outcome: ScanOutcome
    problem: str = ""
    candidates: tuple[tuple[str, str], ...] = ()
    detail: str = ""
    version: int | None = None
    snapshot: str = ""
    results: tuple[tuple[str, str, int | None, Value | None, str], ...] = ()
    is_lease: bool = False
    """Whether it is the lease of a version, without results."""

    @property
    def bounds(self) -> Bounds:
        return Bounds(version=self.asked_version)


@dataclass(frozen=True, slots=True)
class Told:
    """An event of a watch as its reader saw it. `position` is the version up to which everything was sent with it."""

    at_ms: float
    kind: str
    key: str
    version: int | None
    position: int | None
    value: Value | None = None
    first_version: int | None = None
    changes: int | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch through a client: of `keys`, or of all with `prefix`; from the present values, or behind version `after`.

    `way` is `sync` or `async`. It is `ended` when its reader had enough.
    """

    number: int
    began_ms: float
    ended_ms: float
    way: str
    store: str
    keys: tuple[str, ...]
    prefix: str | None
    after: int | None
    outcome: Literal["ended", "failed"]
    detail: str = ""
    events: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit file that made `version`, as a watcher of the live commit log saw it appear.

    It appeared after `not_before_ms` and before `seen_ms`. `not_before_ms` was taken before the last look that did not
    find it (or one before it: they appear in order), None when there was no such look; `seen_ms` was taken after the
    look that found it. `mtime_us` is its modification time, by the storage's clock.
    """

    version: int
    seen_ms: float
    not_before_ms: float | None
    mtime_us: int


@dataclass(frozen=True, slots=True)
class Watched:
    """How far the watcher has looked: what it had not seen by `until_ms` (before its last look) was not there."""

    until_ms: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What a service used, pages of files left out. Another `pid` is another life of it."""

    at_ms: float
    service: str
    pid: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Bases:
    """How many bases a node says that it has replaced. Another `pid` is another life of it."""

    at_ms: float
    service: str
    pid: int
    replaced: int


@dataclass(frozen=True, slots=True)
class AskedAtOnce:
    """So many reads of a kind that were asked of a service at once, when all was healed, and how many were answered.
    `detail` is what came instead of one of the others.
    """

    at_ms: float
    service: str
    kind: str
    asked: int
    answered: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A fault was injected (recorded before it acts), healed (recorded when what was broken is back and says that it is
    ready), or skipped (`detail` says why: the machine does not allow it). `target` is what was really hit."""

    at_ms: float
    fault: str
    target: str
    phase: FaultPhase
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FinalReplica:
    """What one node itself said of one store partition after everything was healed: its version and its keys' values,
    None for a key that it says is absent."""

    node: str
    store: str
    partition: int
    version: int | None
    values: dict[str, Value | None]
    role: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Meta:
    """What it takes to run it again: the seed, the schedule as `Schedule.to_json` gives it, the settings of the
    processes (what is not there is the default), and the versions of what took part. `replicas` is how many of each
    partition there have to be at the end, `kinds` the kind of state of each store that is read."""

    seed: int
    schedule: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    replicas: int = 2
    kinds: dict[str, str] = field(default_factory=dict)


Record = (
    Read
    | Scan
    | SnapshotRead
    | Watch
    | Commit
    | Watched
    | Memory
    | Bases
    | FaultEvent
    | FinalReplica
    | AskedAtOnce
    | Meta
)
Seen = Commit | Watched | Memory | Bases
"""What is recorded of the world itself, whoever reads from it."""


@dataclass(slots=True)
class History:
    """The records of one run, each kind in the order in which it was written."""

    meta: Meta
    reads: list[Read] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    snapshots: list[SnapshotRead] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    faults: list[FaultEvent] = field(default_factory=list)
    finals: list[FinalReplica] = field(default_factory=list)
    watched_until_ms: float | None = None
    memory: list[Memory] = field(default_factory=list)
    bases: list[Bases] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    asked_at_once: list[AskedAtOnce] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Add what was recorded next."""
        if isinstance(record, Meta):
            self.meta = record
        elif isinstance(record, Watched):
            self.watched_until_ms = record.until_ms
        else:
            getattr(self, _LISTS[type(record)]).append(record)


_LISTS: dict[type[Record], str] = {
    Read: "reads",
    Scan: "scans",
    SnapshotRead: "snapshots",
    Commit: "commits",
    FaultEvent: "faults",
    FinalReplica: "finals",
    Memory: "memory",
    Bases: "bases",
    Watch: "watches",
    AskedAtOnce: "asked_at_once",
}
