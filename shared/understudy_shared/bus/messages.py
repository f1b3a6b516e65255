"""Messages between nodes, routers and pipelines: versioned documents, validated on arrival.

Unknown fields are ignored, so that old and new releases can run together; a document of a later major format is refused
by name. No document has a clock reading that another machine would compare with its own clock: ages are durations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import CEILING
from understudy_shared.base.words import HostInfo, KeyPlacement, StoreKind, TaskId

NEWEST: Final = 2
"""Number of commits in a heartbeat. A node that has not seen the newest one yet can compare the previous one."""

MAX_TIME_US: Final = 2**62
_GRAINS_US: Final = (1_000_000, 1_000)


class MessagePart(BaseModel):
    """A part of a message: unknown fields are ignored, and nothing is converted."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class SeenCommit(MessagePart):
    """A version, the modification time of its commit file, and a digest of that file's content ("" if not known)."""

    version: Annotated[int, Field(ge=1, le=CEILING)]
    committed_at_us: Annotated[int, Field(ge=1, le=MAX_TIME_US)]
    digest: str = Field(default="", max_length=16)

    def is_same_as(self, other: SeenCommit) -> bool:
        """Whether both can be the same commit."""
        if self.digest and other.digest and self.digest != other.digest:
            return False
        return is_same_time(self.committed_at_us, other.committed_at_us)


def is_same_time(one_us: int, other_us: int) -> bool:
    """Whether two readings of one file's time may be equal: they are compared at the coarser of their resolutions.

    Storage keeps nanoseconds, milliseconds or whole seconds, and mounts of one storage may differ. A reading shows its
    own resolution: a time that ends in six zeros is compared in seconds.
    """
    grain_us = max(_grain_us(one_us), _grain_us(other_us))
    return one_us // grain_us == other_us // grain_us


def _grain_us(time_us: int) -> int:
    return next((grain_us for grain_us in _GRAINS_US if time_us % grain_us == 0), 1)


FORMAT: Literal[1] = 1
"""The major format of every document here. A reader accepts its own format and older ones."""

MAX_ERRORS = 100
"""Limit on the validation errors of one document that are collected."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Limit on the bytes of a message: above an assignment of 100,000 replicas; nothing longer is parsed."""

MAX_COPIED_BYTES = 64 * 1024
"""Size from which missing fields are checked before pydantic does, which copies the whole document into the error of
each missing field. A heartbeat is shorter, and a thousand may arrive in a second.
"""

MAX_TASKS = 131_072
"""Limit on the tasks of one document: above an assignment of 100,000."""

SLICE_TASKS = 512
"""Number of tasks of an assignment that are written in one piece: about a millisecond."""

_NO_TASKS = b'"tasks":{}'

MAX_PARTITIONS = 1_048_576
MAX_STORES = 1024
MAX_COLUMNS = 4096
"""Limit on the value columns of one store, which are text for people. Key columns are compiled, and spark/types.py
limits them.
"""

MAX_SCHEMAS = 32
"""Limit on the schemas of one store that are shown; these are the newest."""

MAX_SCHEMA_CHARACTERS = 262_144
MAX_FORKS = 16
"""Limit on the nodes that one heartbeat names as forks."""

MAX_FORK_CHARACTERS = 2048

Partitions = Annotated[int, Field(ge=1, le=MAX_PARTITIONS)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Count = Annotated[int, Field(ge=0, le=CEILING)]
ForkText = Annotated[str, StringConstraints(max_length=MAX_FORK_CHARACTERS)]
TaskKey = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})$")]
"""A task within its application: `{operator}_{partition}`, without leading zeros."""


class BadMessageError(UnderstudyError):
    """A document from the bus is malformed, oversized, foreign or of a later format. Nothing of it was used."""


class Message(MessagePart):
    """A document. `format` is its major format."""

    format: Literal[1] = FORMAT
    application_id: Name

    def encode(self) -> bytes:
        return orjson.dumps(self.model_dump(mode="json"))

    @classmethod
    def decode(cls, payload: bytes, *, application_id: str, where: str) -> Self:
        """Parse the document in `payload`. Raises BadMessageError with the reason, and the key or channel."""
        kind = cls.__name__.lower()
        if len(payload) > MAX_MESSAGE_BYTES:
            raise BadMessageError(f"the {kind} has {len(payload)} bytes, above {MAX_MESSAGE_BYTES}", where=where)
        if len(payload) > MAX_COPIED_BYTES:
            cls._check(payload, where)
        try:
            message = cls.model_validate_json(payload)
        except ValidationError as error:
            cls._check(payload, where)
            raise BadMessageError(f"the {kind} is malformed: {_first_of(error)}", where=where) from None
        if message.application_id != application_id:
            raise BadMessageError(
                f"the {kind} is of application {message.application_id!r}, not of {application_id!r}", where=where
            )
        return message

    @classmethod
    def _check(cls, payload: bytes, where: str) -> None:
        """Raise BadMessageError if the document is not a JSON object, has a later format, or lacks a field."""
        kind = cls.__name__.lower()
        try:
            fields = orjson.loads(payload)
        except (orjson.JSONDecodeError, RecursionError) as error:
            raise BadMessageError(f"the {kind} is not JSON: {error}", where=where) from None
        if not isinstance(fields, dict):
            raise BadMessageError(f"the {kind} is not a JSON object", where=where)
        found_format = fields.get("format")
        if type(found_format) is int and found_format > FORMAT:
            raise BadMessageError(
                f"the {kind} has format {found_format}; this release reads up to {FORMAT}",
                where=where,
                fix="Upgrade this process before those that write",
            )
        for name, declared in cls.model_fields.items():
            if declared.is_required() and name not in fields:
                raise BadMessageError(f"the {kind} lacks the field {name}", where=where)


class NodeEndpoint(MessagePart):
    """The address at which a node listens for other processes."""

    host: Name
    port: int = Field(ge=1, le=65535)

    def host_info(self) -> HostInfo:
        return HostInfo(self.host, self.port)


class Restore(MessagePart):
    """The progress of a restore. `total_bytes` is None while that is not known."""

    stage: str = Field(max_length=64)
    done_bytes: Count
    total_bytes: Count | None = None


class Freshness(MessagePart):
    """Time from commits to the moment when a node could serve them, over the last minute; rounded up."""

    p50_ms: Count
    p99_ms: Count


class QueryProgress(MessagePart):
    """The progress of the query itself, by what a node saw of the checkpoint's files."""

    since_commit_ms: Count | None = None
    """Time since the last commit arrived; None when this node saw no commit arrive."""
    commit_interval_ms: Count | None = None
    """Time between the last two commits that it saw arrive."""
    batch_ms: Count | None = None
    """Time since it first saw that the batch after the end has begun; None: that batch has not begun."""


class Applied(MessagePart):
    """The progress of a replica. `version` is None while nothing of it is open; `time_lag_ms` None while unknown."""

    version: Count | None
    time_lag_ms: Count | None = None
    state: Literal["CREATED", "RESTORING", "RUNNING", "CLOSED"] = "RUNNING"
    error: str | None = Field(default=None, max_length=2048)
    restore: Restore | None = None
    """Set while the replica restores."""


class Load(MessagePart):
    """The work of a node, for the assignor to balance: for this application, and for the others of its process."""

    operator_bytes: dict[Annotated[str, StringConstraints(max_length=9)], Count] = Field(
        default_factory=dict, max_length=MAX_STORES
    )
    """Mean size of the replicas of an operator's tasks that it holds, by the operator's id."""
    reads_per_s: Count = 0
    others_bytes: Count = 0
    others_reads_per_s: Count = 0


class Heartbeat(Message):
    """One node, now. Its size does not grow with the tasks that are in step: `applied` holds for every task that the
    node's epoch gives it, except for those in `exceptions`. Roles follow from the epoch.
    """

    node_id: Name
    incarnation: Name
    """The id of the process: another process with the same node id has another incarnation."""
    sequence: Count
    """The number of this heartbeat within its incarnation; an older one that arrives later is dropped."""
    endpoint: NodeEndpoint
    zone: str | None = Field(default=None, max_length=256)
    state: Literal["starting", "serving", "draining", "failed"]
    leaving: bool = False
    """Whether it is stopping, and answers for a moment more: ask it last, leave its replicas where they are."""
    heartbeat_ms: int = Field(ge=1, le=3_600_000)
    """Time to the next one; after three of these without one the node is dead."""
    lineage: Name | None
    """The lineage; None while the checkpoint could not be read."""
    partitions: Annotated[int, Field(ge=0, le=MAX_PARTITIONS)] | None = None
    """Shuffle partitions of the layout that is served; None before the first commit."""
    end_version: Count
    end_age_ms: Count | None
    """Age of the poll that confirmed the end here; None while the end is not confirmed: lag is unknown then."""
    applied: Applied
    exceptions: dict[TaskKey, Applied] = Field(default_factory=dict, max_length=MAX_TASKS)
    held: list[TaskKey] | None = Field(default=None, max_length=MAX_TASKS)
    """All tasks that the node holds, if not those that the assignment of (term, epoch) gives it; else None."""
    term: Count
    epoch: Count
    """The epoch of the assignment that this node follows."""
    catalogue: str | None = Field(default=None, max_length=64)
    """Hash of the catalogue by which it serves."""
    checkpoint: str = Field(default="", max_length=4096)
    """The checkpoint's location in this node's settings, for people to compare."""
    degraded: list[Name] = Field(default_factory=list, max_length=32)
    """Names of the causes by which this node is degraded: something does not work although lookups do."""
    freshness: Freshness | None = None
    """Freshness; None when this node made nothing visible lately, or does not know when it was committed."""
    query: QueryProgress | None = None
    """None while the node cannot say all of its state, and while it waits for its checkpoint."""
    waits_for: str | None = Field(default=None, max_length=2048)
    """Description of what must exist before the node can hold anything: the checkpoint, or the query's first commit."""
    commits: list[SeenCommit] = Field(default_factory=list, max_length=8)
    """The newest commits as this node read them; empty before the first."""
    forks: dict[Name, ForkText] = Field(default_factory=dict, max_length=MAX_FORKS)
    """Nodes that this node found to follow another history of the same checkpoint id, with the evidence."""
    load: Load = Load()

    @property
    def standing(self) -> str:
        """The state for readers and people: a leaving node is `leaving` in any other state, and one that starts and
        waits for its checkpoint is `waiting`.
        """
        if self.leaving:
            return "leaving"
        return "waiting" if self.waits_for and self.state == "starting" else self.state

    @property
    def is_asked_last(self) -> bool:
        """Whether readers should prefer other nodes: this one leaves, or something in it has died."""
        return self.standing in {"leaving", "draining", "failed"}


class Farewell(Message):
    """A node leaves in good order."""

    node_id: Name
    incarnation: Name


class CatalogueSchema(MessagePart):
    """A schema that a store was written by, only shown. Columns have name, type, nullable."""

    schema_id: Count
    from_batch: Count | None
    key: list[dict[str, str | bool]] = Field(max_length=MAX_COLUMNS)
    value: list[dict[str, str | bool]] = Field(max_length=MAX_COLUMNS)


class CatalogueStore(MessagePart):
    """One store: all that is needed to encode, place and print its keys, and to describe it."""

    store: Name
    operator_id: Count
    operator: Name
    kind: Name = StoreKind.VALUE.value
    """The kind of the store (`StoreKind`): what it keeps of a key."""
    key_schema: str = Field(max_length=MAX_SCHEMA_CHARACTERS)
    """Spark's JSON of the key columns' struct."""
    key_names: list[str] = Field(max_length=MAX_COLUMNS)
    num_hash_columns: Count | None = None
    is_normalised: bool = True
    placement: Name = KeyPlacement.BY_HASH.value
    """The placement of the keys (`KeyPlacement`)."""
    partitions: Partitions
    value: list[dict[str, str | bool]] = Field(max_length=MAX_COLUMNS)
    """The value columns as `GET /v1/stores` shows them: name, type, nullable."""
    result: list[dict[str, str]] = Field(default_factory=list, max_length=MAX_COLUMNS)
    """The result columns in the same way: name and type. Empty when the results are not known."""
    unnamed: list[str] = Field(default_factory=list)
    """Value columns that no result is made of, where results are known."""
    schemas: list[CatalogueSchema] = Field(default_factory=list, max_length=MAX_SCHEMAS)
    """The history of its schemas; empty where there is no room for it."""


class Catalogue(Message):
    """The stores of an application in one layout of one lineage; named by the hash of its bytes."""

    lineage: Name
    partitions: Partitions
    stores: list[CatalogueStore] = Field(max_length=MAX_STORES)
    not_served: list[dict[str, str | int]] = Field(default_factory=list, max_length=MAX_STORES)


@dataclass(frozen=True, slots=True)
class AssignedTask:
    """The nodes that have a task, by id. A warm-up is read from like a standby, but does not count as one.

    There may be 100,000 of them. As models, each would be six objects for the garbage collector to walk.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="ignore", strict=True)

    active: str | None
    standbys: tuple[str, ...] = ()
    warmups: tuple[str, ...] = ()

    @property
    def holders(self) -> tuple[str, ...]:
        """All nodes that have a replica, the active first."""
        return (*(() if self.active is None else (self.active,)), *self.standbys, *self.warmups)


class Assignment(Message):
    """The distribution of tasks to nodes. (term, epoch) only ever grows; written by the holder of `term`."""

    term: Count
    epoch: Count
    written_by: Name
    lineage: Name
    partitions: Partitions
    """Shuffle partitions of the layout that these tasks belong to."""
    tasks: dict[TaskKey, AssignedTask] = Field(max_length=MAX_TASKS)
    members: dict[str, NodeEndpoint] = Field(default_factory=dict)
    """Addresses of its nodes, as of its writing; nodes that are away, with a reserved place only, are left out."""
    draining: list[str] = Field(default_factory=list)

    @property
    def order(self) -> tuple[int, int]:
        """The (term, epoch), which grows from one assignment to the next."""
        return (self.term, self.epoch)

    @cached_property
    def holders(self) -> frozenset[str]:
        """Every node that has a task."""
        return frozenset(node_id for task in self.tasks.values() for node_id in task.holders)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the model, without values that were computed of the original."""
        copied = super().model_copy(update=update, deep=deep)
        vars(copied).pop("holders", None)
        return copied

    def encode(self) -> bytes:
        """Encode as every message, but in slices: a thread that does it lets others work in between."""
        text = orjson.dumps(self.model_copy(update={"tasks": {}}).model_dump(mode="json"))
        head, _, tail = text.partition(_NO_TASKS)  # in a string its quotes would be escaped
        tasks = iter(self.tasks.items())
        slices = iter(lambda: dict(islice(tasks, SLICE_TASKS)), {})
        found = [orjson.dumps(few)[1:-1] for few in slices]
        return head + _NO_TASKS[:-1] + b",".join(found) + b"}" + tail


class CommitHint(Message):
    """The query committed `version`: poll the commit log now. Only a hint; the commit log is the authority."""

    version: Count


def _first_of(error: ValidationError) -> str:
    """Describe the first error, or only count them if there are very many: pydantic makes a dict of each before it
    returns the first.
    """
    if error.error_count() > MAX_ERRORS:
        return f"{error.error_count()} values are wrong"
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))[:200] or 'content'} is wrong: {first['msg']:.300}"


def task_key(task: TaskId) -> str:
    """Return the task's name within its application."""
    return f"{task.operator_id}_{task.partition}"


MAX_TYPE_CHARACTERS = 65_536
"""Limit on the type of a result: an array of structs of some hundred columns."""

MAX_ANNOUNCED = 256
"""Limit on the stores of one announcement; each is tried against the checkpoint."""

MAX_LOCATION_CHARACTERS = 4096


class ResultColumn(MessagePart):
    """One output column that can be computed exactly from the stored buffers of an aggregate."""

    name: Name
    function: Name
    """One of `ResultFunction`, or of a later release: a node leaves out the columns of those that it does not know."""
    buffers: list[Count] = Field(min_length=1, max_length=MAX_COLUMNS)
    """Indexes of the value columns it is made of, in Spark's order."""
    type: Annotated[str, StringConstraints(min_length=1, max_length=MAX_TYPE_CHARACTERS)]
    """Spark's name of the output type; for an array its JSON."""


class AnnouncedStore(MessagePart):
    """Names that the job's author chose for one store, by its operator."""

    operator_id: Count
    name: Name | None = None
    key: list[Name] | None = Field(default=None, max_length=MAX_COLUMNS)
    value: list[Name] | None = Field(default=None, max_length=MAX_COLUMNS)
    result: list[ResultColumn] = Field(default_factory=list, max_length=MAX_COLUMNS)


class Announcement(Message):
    """The names that the pipeline announces for its query, by one call in the user's job. Never needed to answer."""

    query_id: Name
    """The lineage it is about; ignored by nodes that follow another."""
    stores: list[AnnouncedStore] = Field(max_length=MAX_ANNOUNCED)
    checkpoint: str | None = Field(default=None, min_length=1, max_length=MAX_LOCATION_CHARACTERS)
    """The location of its checkpoint, as Spark resolved it; None where it cannot be told, or was taken out."""
