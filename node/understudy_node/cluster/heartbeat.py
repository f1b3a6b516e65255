"""Builds a node's messages about itself: the heartbeat, which others use to route and assign, and the catalogue.

Positions are read before the end: a commit between the two reads overstates a replica's lag, never understates it. If
the full heartbeat does not validate, a minimal one shows that the node lives. A catalogue that does not validate is
left out. `unsaid` then says why, and the next turn tries again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from pydantic import ValidationError

from understudy_node.cluster.context import MemberContext, MemberId
from understudy_node.events import OWN_MESSAGE
from understudy_node.follow.end import End
from understudy_node.generations import Generation
from understudy_node.node import Node
from understudy_node.replica.task import TaskReplica
from understudy_node.settings import NodeSettings
from understudy_node.stores.lookup import StoreReader
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.masking import masked_location
from understudy_shared.base.plausible import Order, Succession, succession
from understudy_shared.base.words import HostInfo, Lineage, ReplicaState
from understudy_shared.bus.gossip import digest_of
from understudy_shared.bus.messages import (
    Applied,
    Catalogue,
    CatalogueSchema,
    CatalogueStore,
    Farewell,
    Heartbeat,
    Load,
    NodeEndpoint,
    Restore,
)

SAMPLED: Final = 8
"""Replicas sampled per operator: its tasks are of about the same size."""

MEASURE_AGAIN_MS: Final = 30_000
"""Time over which reads are counted."""


class Borne(NamedTuple):
    """The load of one application at a node."""

    held_bytes: int
    reads_per_s: int


class ProcessLoad:
    """The load of a process, by application."""

    def __init__(self) -> None:
        self._borne: dict[str, Borne] = {}

    def note(self, application_id: str, borne: Borne | None) -> None:
        """Take the load of an application; None when it leaves."""
        if borne is None:
            self._borne.pop(application_id, None)
        else:
            self._borne[application_id] = borne

    def of_others(self, application_id: str) -> Borne:
        others = [borne for each, borne in self._borne.items() if each != application_id]
        return Borne(sum(each.held_bytes for each in others), sum(each.reads_per_s for each in others))


class LoadMeter:
    """The load of one application at this node, measured anew from time to time."""

    def __init__(self, node: Node, process: ProcessLoad) -> None:
        self._node = node
        self._application_id = node.settings.application
        self._process = process
        self._operator_bytes: Mapping[str, int] = {}
        self._borne = Borne(0, 0)
        self._measured_ms: float | None = None
        self._answered = 0

    def read(self, now_ms: float) -> Load:
        if self._measured_ms is None or now_ms - self._measured_ms >= MEASURE_AGAIN_MS or not self._operator_bytes:
            self._measure(now_ms)
        others = self._process.of_others(self._application_id)
        return Load(
            operator_bytes=dict(self._operator_bytes),
            reads_per_s=self._borne.reads_per_s,
            others_bytes=others.held_bytes,
            others_reads_per_s=others.reads_per_s,
        )

    def stop(self) -> None:
        self._process.note(self._application_id, None)

    def _measure(self, now_ms: float) -> None:
        generation = self._node.generation
        held = _by_operator(() if generation is None else generation.replicas)
        self._operator_bytes = {operator: size for operator, some in held.items() if (size := _mean_bytes(some))}
        total = sum(self._operator_bytes.get(operator, 0) * len(some) for operator, some in held.items())
        reads_per_s = self._borne.reads_per_s
        if self._measured_ms is None or now_ms - self._measured_ms >= MEASURE_AGAIN_MS:
            answered, before_ms = self._node.measures.lags.total, self._measured_ms
            if before_ms is not None:
                reads_per_s = round((answered - self._answered) * 1000 / (now_ms - before_ms))
            self._answered, self._measured_ms = answered, now_ms
        self._borne = Borne(total, reads_per_s)
        self._process.note(self._application_id, self._borne)


def _by_operator(replicas: Sequence[TaskReplica]) -> dict[str, list[TaskReplica]]:
    found: dict[str, list[TaskReplica]] = {}
    for replica in replicas:
        found.setdefault(str(replica.task.operator_id), []).append(replica)
    return found


def _mean_bytes(replicas: Sequence[TaskReplica]) -> int:
    """Return the mean size of sampled replicas that show a version; 0 while they all restore."""
    sizes = [size for each in replicas[:SAMPLED] if (size := each.stored_bytes) is not None]
    return round(sum(sizes) / len(sizes)) if sizes else 0


MAX_ERROR_CHARACTERS = 500
"""Most characters of a replica's error: enough to know where to look."""

State = Literal["starting", "serving", "draining", "failed"]


class MemberStatus(NamedTuple):
    """The state of the member for a heartbeat, without its replicas.

    `order` is (term, epoch) of the followed assignment.
    """

    state: State
    order: Order
    leaving: bool = False
    degraded: Sequence[str] = ()
    forks: Mapping[str, str] = {}


class _ReplicaStatus(NamedTuple):
    """The position of a replica; equal for all replicas in step."""

    version: int | None
    time_lag_ms: int | None
    state: ReplicaState
    error: str | None
    restore: Restore | None

    def applied(self) -> Applied:
        return Applied(
            version=self.version,
            time_lag_ms=self.time_lag_ms,
            state=self.state.value,
            error=self.error,
            restore=self.restore,
        )


_NOTHING = _ReplicaStatus(None, None, ReplicaState.CREATED, None, None)

_Kind = tuple[int | None, ReplicaState, UnderstudyError | None, Restore | None]
"""Version, state, error and restore: the reported parts of a replica. Replicas of one kind have one position."""


def heartbeat_of(
    node: Node,
    member_id: MemberId,
    status: MemberStatus,
    *,
    sequence: int,
    zone: str | None,
    heartbeat_ms: int,
    catalogue: str | None,
    now_ms: float,
    load: Load,
) -> Heartbeat:
    """Return the heartbeat of the node in its present state; `now_ms` is its monotonic clock."""
    generation = node.generation
    replicas = () if generation is None else generation.replicas
    kinds = {replica.key: _kind(replica) for replica in replicas}
    end = node.end
    one_of = dict(zip(kinds.values(), replicas, strict=True))  # one lag is computed for a thousand tasks in step
    standings = {kind: _standing(kind, replica, end, now_ms) for kind, replica in one_of.items()}
    counts: Counter[_ReplicaStatus] = Counter()
    for kind, count in Counter(kinds.values()).items():
        counts[standings[kind]] += count
    usual = counts.most_common(1)[0][0] if counts else _NOTHING
    unusual = {kind: standing.applied() for kind, standing in standings.items() if standing != usual}
    return Heartbeat(
        application_id=node.settings.application,
        node_id=member_id.node_id,
        incarnation=member_id.incarnation,
        sequence=sequence,
        endpoint=NodeEndpoint(host=node.host.host, port=node.host.port),
        zone=zone,
        state=status.state,
        leaving=status.leaving,
        heartbeat_ms=heartbeat_ms,
        lineage=node.lineage,
        partitions=None if generation is None else generation.layout.partitions,
        end_version=end.version,
        end_age_ms=None if end.confirmed_ms is None else max(0, round(now_ms - end.confirmed_ms)),
        applied=usual.applied(),
        exceptions={task: unusual[kind] for task, kind in kinds.items() if kind in unusual} if unusual else {},
        held=_held(node, list(kinds)),
        term=status.order[0],
        epoch=status.order[1],
        catalogue=catalogue,
        checkpoint=masked_location(node.settings.checkpoint),
        degraded=list(status.degraded),
        freshness=node.measures.visible.freshness(now_ms),
        query=node.query_progress(),
        commits=node.history.newest(end.version),
        forks=dict(status.forks),
        waits_for=node.waits_for,
        load=load,
    )


def least_heartbeat(
    settings: NodeSettings,
    host: HostInfo,
    member_id: MemberId,
    *,
    state: State,
    sequence: int,
    lineage: Lineage | None,
    **more: Any,
) -> Heartbeat:
    """Return a heartbeat without positions: for a node that holds nothing yet, or if the full one does not validate."""
    return Heartbeat(
        application_id=settings.application,
        node_id=member_id.node_id,
        incarnation=member_id.incarnation,
        sequence=sequence,
        endpoint=NodeEndpoint(host=host.host, port=host.port),
        state=state,
        heartbeat_ms=settings.lag_refresh_ms,
        lineage=lineage,
        end_version=0,
        end_age_ms=None,
        applied=_NOTHING.applied(),
        term=0,
        epoch=0,
        **more,
    )


def _kind(replica: TaskReplica) -> _Kind:
    view = replica.view
    version = None if view is None else view.version
    return version, replica.state, replica.error, replica.restore


def _standing(kind: _Kind, replica: TaskReplica, end: End, now_ms: float) -> _ReplicaStatus:
    """Return the position of the replicas of a kind, from one of them: a node measures all of them against one end."""
    version, state, error, restore = kind
    time_lag_ms = None if version is None else replica.progress.lag_at(version, end, now_ms=now_ms).time_lag_ms
    said = None if error is None else str(error)[:MAX_ERROR_CHARACTERS]
    return _ReplicaStatus(version, time_lag_ms, state, said, restore)


def _held(node: Node, held: list[str]) -> list[str] | None:
    duties = node.duties
    return None if duties is not None and duties.keys() == set(held) else sorted(held)


CATALOGUE_EVERY_MS = 3600 * 1000
"""Time after which a catalogue is written again: it expires after a day without a writer."""


MAX_HISTORY_BYTES = 1024 * 1024
"""Size limit of the histories of all stores together: a message of the bus has room for 4 MiB."""


def catalogue_of(generation: Generation, application_id: str) -> Catalogue:
    """Return the catalogue of a generation: the same on every node that has its layout and names."""
    return Catalogue(
        application_id=application_id,
        lineage=generation.lineage,
        partitions=generation.layout.partitions,
        stores=within_limits([_store(reader) for reader in generation.readers.values()]),
        not_served=generation.not_served(),
    )


def _store(reader: StoreReader) -> CatalogueStore:
    store = reader.store
    return CatalogueStore(
        store=store.name,
        operator_id=store.operator_id,
        operator=store.operator_name,
        kind=store.kind.value,
        key_schema=store.key_schema_json,
        key_names=list(store.codec.names),
        num_hash_columns=store.codec.num_hash_columns,
        is_normalised=store.is_normalised,
        placement=store.codec.placement.value,
        partitions=reader.partitions,
        value=store.value_columns(),
        result=list(store.results),
        unnamed=list(store.unnamed),
        schemas=[CatalogueSchema.model_validate(schema) for schema in store.schemas],
    )


def within_limits(stores: list[CatalogueStore]) -> list[CatalogueStore]:
    """Return the stores, without the histories of schemas that do not fit into a message."""
    left, kept = MAX_HISTORY_BYTES, []
    for store in stores:
        left -= sum(len(schema.model_dump_json()) for schema in store.schemas)
        kept.append(store if left >= 0 else store.model_copy(update={"schemas": []}))
    return kept


class OwnMessages:
    """The messages of one node, with their sequence numbers."""

    def __init__(self, context: MemberContext, *, zone: str, load: LoadMeter) -> None:
        self.unsaid: str | None = None
        """The reason why a message of this node cannot be sent, None if all can."""
        self._node = context.node
        self._gossip = context.gossip
        self._member_id = context.member_id
        self._zone = zone or None
        self._load = load
        self._heartbeat_ms = context.heartbeat_ms
        self._clock = context.clock
        self._sequence = 0
        self._made: tuple[Generation, str, Catalogue] | None = None
        """The catalogue of a generation, made once for each, after its digest."""
        self._published: tuple[str, float] | None = None

    def causes(self) -> dict[str, str]:
        return {} if self.unsaid is None else {OWN_MESSAGE: self.unsaid}

    def heartbeat(self, status: MemberStatus) -> Heartbeat:
        """Return the next heartbeat, of the present state; the least heartbeat if it does not validate."""
        self._sequence += 1
        try:
            catalogue, now_ms = self.catalogue(), self._clock.monotonic_ms()
            return heartbeat_of(
                self._node,
                self._member_id,
                status,
                sequence=self._sequence,
                zone=self._zone,
                heartbeat_ms=self._heartbeat_ms,
                catalogue=None if catalogue is None else catalogue[0],
                load=self._load.read(now_ms),
                now_ms=now_ms,
            )
        except ValidationError as error:
            self.cannot_say("heartbeat", error)
            node = self._node
            return least_heartbeat(
                node.settings,
                node.host,
                self._member_id,
                state=status.state,
                sequence=self._sequence,
                lineage=node.lineage,
            )

    def farewell(self) -> Farewell:
        node_id, incarnation = self._member_id
        return Farewell(application_id=self._gossip.application_id, node_id=node_id, incarnation=incarnation)

    def catalogue(self) -> tuple[str, Catalogue] | None:
        """Return the digest and the catalogue of the served generation; None before there is one."""
        generation = self._node.generation
        if generation is None:
            return None
        if self._made is None or self._made[0] is not generation:
            catalogue = catalogue_of(generation, self._gossip.application_id)
            self._made = (generation, digest_of(catalogue), catalogue)
        return self._made[1], self._made[2]

    async def write_catalogue(self, now_ms: float) -> None:
        """Write the catalogue if it is new on the bus, and every `CATALOGUE_EVERY_MS`. Raises BusError."""
        try:
            if (catalogue := self.catalogue()) is None:
                return
            digest, document = catalogue
            is_new = self._published is None or self._published[0] != digest
            if self._published is None or is_new or now_ms - self._published[1] > CATALOGUE_EVERY_MS:
                # Of many nodes that start together, only one has to write it.
                if not is_new or await self._gossip.catalogue(digest) is None:
                    await self._gossip.write_catalogue(digest, document)
                self._published = (digest, now_ms)
        except ValidationError as error:
            self.cannot_say("catalogue", error)

    def bus_came_back(self) -> None:
        self._published = None

    def cannot_say(self, kind: str, error: ValidationError) -> None:
        """Note and count a message of this node that does not validate: no other process would accept it."""
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or kind
        self.unsaid = f"this node cannot send its {kind}: {place} is wrong: {first['msg']}"
        self._gossip.refuse(f"own-{kind}", self.unsaid)

    def refute(self, heard: Heartbeat) -> bool:
        """Skip past the number of a heartbeat in this process' name that this process has not sent.

        Return True if it was one.
        """
        is_own = (heard.node_id, heard.incarnation) == self._member_id
        if not is_own or heard.sequence <= self._sequence:
            return False
        self._gossip.refuse("heartbeat", f"a heartbeat in this node's own name, numbered {heard.sequence}")
        found = succession(heard.sequence, self._sequence, later_ms=0, heartbeat_ms=self._heartbeat_ms)
        if found is Succession.NEWER:
            self._sequence = heard.sequence
        return True
