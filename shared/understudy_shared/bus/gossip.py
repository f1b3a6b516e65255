"""Writes and reads all documents on the bus by name and type. No other module knows keys and channels.

Keys are `us:{application}:...`. The braces are part of the key: they keep an application's keys on one shard, where a
script may use several of them. Any program may have written a key with the name of an application. So a name that
cannot be an application id is ignored, and other names are clipped.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

import orjson

from understudy_shared.base.texts import clipped, did_you_mean, named
from understudy_shared.bus.assignments import AssignmentChange, change_between, decode
from understudy_shared.bus.base import Back, Bus, Fence, Lost
from understudy_shared.bus.message_auth import LARGE_BYTES, Authentic, MessageAuth, UnauthenticError
from understudy_shared.bus.messages import (
    Announcement,
    Assignment,
    BadMessageError,
    Catalogue,
    CommitHint,
    Farewell,
    Heartbeat,
    Message,
)

log = logging.getLogger(__name__)

KEY_PREFIX = "us:{"
ANNOUNCED = "us:announced"
"""The channel on which the id of an application is sent when its query is announced. It is only a hint to look."""

NODE = "node:"
ANNOUNCEMENT = "announcement"
MAX_NAMED = 5
"""Number of applications that an error text names."""
MAX_ID_CHARS = 256


def key_root(application_id: str) -> str:
    """Return the prefix of every key of an application."""
    return f"{KEY_PREFIX}{quote(application_id, safe='')}}}:"


@dataclass(frozen=True, slots=True)
class Applications:
    """The number of nodes of each application on a bus; 0 if only its other keys are left."""

    nodes: dict[str, int]
    is_all: bool = True
    """Whether these are all applications: False if the bus has more keys than were read."""
    announced: frozenset[str] = frozenset()
    """The applications that a pipeline has announced."""
    node_ids: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The ids of the nodes of each application that has some."""

    @classmethod
    def of_keys(cls, keys: Iterable[str], *, is_all: bool) -> Applications:
        """Count the nodes in keys such as `us:{flights}:node:n1`."""
        nodes: Counter[str] = Counter()
        node_ids: dict[str, set[str]] = {}
        announced = set()
        for key in keys:
            name, _, rest = key.removeprefix(KEY_PREFIX).partition("}:")
            application_id = unquote(name)
            if 0 < len(application_id) <= MAX_ID_CHARS and key.startswith(key_root(application_id)):
                nodes[application_id] += rest.startswith(NODE)
                if rest.startswith(NODE):
                    node_ids.setdefault(application_id, set()).add(unquote(rest.removeprefix(NODE)))
                if rest == ANNOUNCEMENT:
                    announced.add(application_id)
        return cls(dict(sorted(nodes.items())), is_all, frozenset(announced), node_ids)

    def others(self, application_id: str) -> list[str]:
        """List the other applications that have nodes."""
        return [name for name, nodes in self.nodes.items() if nodes and name != application_id]

    def without_nodes(self, application_id: str) -> list[str]:
        """List the other applications that have keys, but no live node."""
        return [name for name, nodes in self.nodes.items() if not nodes and name != application_id]


def unheard_text(application_id: str, found: Applications, *, where: str) -> str:
    """Say, for a router, that it hears no node of its application."""
    heard, silent = found.others(application_id), found.without_nodes(application_id)
    text = f"no node of application {clipped(application_id)} is heard on {where}; "
    if heard:
        text += f"heard there: {named(map(clipped, heard), MAX_NAMED)}"
    elif silent:
        text += f"no other application is heard there, but there are keys of: {named(map(clipped, silent), MAX_NAMED)}"
    else:
        text += "no other application is heard there"
    return text if found.is_all else f"{text} (it has more keys than were read)"


def unheard_fix(application_id: str, found: Applications, *, where: str) -> str:
    """Say what the client of such a router has to do, with the reason."""
    text = unheard_text(application_id, found, where=where)
    known = [*found.others(application_id), *found.without_nodes(application_id)]
    return f"{text[0].upper()}{text[1:]}. {did_you_mean(application_id, known)}{CHECK}"


CHECK = "Check --application-id and --redis, or start nodes"


EXPIRY_HEARTBEATS = 3
"""Number of heartbeats after which a silent node is dead, and a silent lease holder is replaced."""

BACK_SPREAD_HEARTBEATS = 0.25
"""The heartbeats over which processes that lost the bus together spread their reading of its keys."""

SLICE_S = 0.002
"""Longest work on waiting messages before other tasks run: taking a message from a full inbox does not yield."""

CATALOGUE_EXPIRY_MS = 24 * 3600 * 1000
"""Expiry of a catalogue. Nodes rewrite theirs far more often; one that is a day old is never read."""

LET_GO_EXPIRY_MS = 24 * 3600 * 1000
"""Expiry of an announcement without its location: time for every node to read it."""

MAX_SOURCES = 256
"""Number of sources of refused documents that get a log line each. Further sources share one line per kind."""

M = TypeVar("M", bound=Message)
Spoken = Heartbeat | Farewell | Assignment | AssignmentChange | CommitHint | Announcement
"""The messages on the channels."""

_SPOKEN: dict[bytes, type[Spoken]] = {
    b"heartbeat": Heartbeat,
    b"farewell": Farewell,
    b"assignment": Assignment,
    b"change": AssignmentChange,
    b"hint": CommitHint,
    b"announcement": Announcement,
}
_KIND_OF: dict[type[Message], bytes] = {kind: name for name, kind in _SPOKEN.items()} | {Catalogue: b"catalogue"}


class AgedHeartbeat(NamedTuple):
    """A heartbeat and its age. When it is read from its key, the age is computed from the key's remaining expiry, so no
    clocks are compared.
    """

    heartbeat: Heartbeat
    age_ms: int


class Names:
    """Keys and channels of one application."""

    def __init__(self, application_id: str) -> None:
        root = key_root(application_id)
        self.nodes = f"{root}{NODE}"
        self.assignment = f"{root}assignment"
        self.announcement = f"{root}{ANNOUNCEMENT}"
        self.lease = f"{root}lease"
        self.term = f"{root}term"
        self.catalogues = f"{root}catalogue:"
        self.channel = f"{root}events"
        self.heartbeats = f"{root}heartbeats"
        """The channel of heartbeats. Only routers, and the nodes that may assign, read it."""

    def node(self, node_id: str) -> str:
        return self.nodes + quote(node_id, safe="")

    def catalogue(self, digest: str) -> str:
        return self.catalogues + quote(digest, safe="")


class Gossip:
    """The bus of one application. Calls raise BusError. A document that does not parse, or does not come from this
    cluster, is counted and ignored.
    """

    def __init__(self, bus: Bus, application_id: str, auth: MessageAuth | None = None) -> None:
        """Take a bus. `auth` signs and judges documents; without it nothing is signed."""
        self.application_id = application_id
        self.names = Names(application_id)
        self.refused: Counter[str] = Counter()
        """The number of refused documents by kind."""
        self.auth = auth or MessageAuth(application_id)
        self.auth.on_refused = self._unauthentic
        self._bus = bus
        self._sources: set[tuple[str, str]] = set()
        """The sources that a log line has named, each with its reason."""

    async def close(self) -> None:
        """Close the bus."""
        await self._bus.close()

    async def beat(self, heartbeat: Heartbeat) -> bool:
        """Write and publish a heartbeat. False when another process uses the node id: then nothing was written."""
        return await self._bus.put_owned(
            self.names.node(heartbeat.node_id),
            heartbeat.incarnation,
            self._sealed(heartbeat),
            expiry_ms=heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS,
            channel=self.names.heartbeats,
        )

    async def say(self, heartbeat: Heartbeat) -> None:
        """Publish a heartbeat without writing it, on the channel that all processes read: the bus refuses writes."""
        await self._bus.publish(self.names.channel, self._sealed(heartbeat))

    async def leave(self, farewell: Farewell) -> None:
        """Delete a node's heartbeat and publish its farewell."""
        key = self.names.node(farewell.node_id)
        await self._bus.delete_owned(key, farewell.incarnation, self._sealed(farewell), channel=self.names.channel)

    async def nodes(self, *, known: Collection[str] = ()) -> list[AgedHeartbeat]:
        """Return the last heartbeats of live nodes with their ages: `known` nodes first, then others within the limits
        of a scan.
        """
        found = []
        keys = [self.names.node(node_id) for node_id in sorted(known)]
        turns = _Turns()
        for key, stored in sorted((await self._bus.scan(self.names.nodes, known=keys)).items()):
            await turns.give()
            found_here = await self._authentic(stored.payload, where=key)
            heartbeat = None if found_here is None else await self._open(Heartbeat, found_here, turns, where=key)
            if found_here is None or heartbeat is None:
                continue
            if self.names.node(heartbeat.node_id) != key:
                self.refuse("heartbeat", f"a heartbeat of node {heartbeat.node_id!r} under another's key ({key})")
            elif self.auth.is_current(found_here):
                expiry_ms = heartbeat.heartbeat_ms * EXPIRY_HEARTBEATS
                age_ms = expiry_ms if stored.left_ms is None else max(0, expiry_ms - stored.left_ms)
                found.append(AgedHeartbeat(heartbeat, age_ms))
        return found

    async def applications(self) -> Applications:
        """Count the applications among the keys of this bus that are read."""
        return await applications_on(self._bus)

    async def write_catalogue(self, digest: str, catalogue: Catalogue) -> None:
        """Write a catalogue under its hash; the same hash is always the same content."""
        await self._bus.put(self.names.catalogue(digest), self._sealed(catalogue), expiry_ms=CATALOGUE_EXPIRY_MS)

    async def catalogue(self, digest: str) -> Catalogue | None:
        """Return the catalogue with this hash; None without one, and for content that does not have this hash."""
        key = self.names.catalogue(digest)
        stored = await self._bus.get(key)
        if stored is None:
            return None
        authentic = await self._authentic(stored.payload, where=key)
        found = None if authentic is None else await self._open(Catalogue, authentic, _Turns(), where=key)
        if authentic is not None and found is not None and not _is_named(authentic.document, digest):
            self.refuse("catalogue", f"a catalogue that was altered: its hash is not its name ({key})")
            return None
        return found

    async def assignment(self) -> Assignment | None:
        return await self._read(Assignment, self.names.assignment)

    async def write_assignment(self, assignment: Assignment, fence: Fence, before: Assignment | None = None) -> bool:
        """Write the next assignment; return False if the fence no longer holds or a later assignment is stored.

        If the difference to `before` is enough for all readers, only that is published; else the whole assignment.
        """
        whole, change = await asyncio.to_thread(self._sealed_assignment, assignment, before)  # it may have 4 megabytes
        return await self._bus.put_fenced(
            self.names.assignment,
            whole,
            epoch=assignment.epoch,
            fence=fence,
            channel=self.names.channel,
            change=change,
        )

    def _sealed_assignment(self, assignment: Assignment, before: Assignment | None) -> tuple[bytes, bytes | None]:
        whole = self._sealed(assignment)
        change = None if before is None else change_between(before, assignment)
        return whole, None if change is None else self._sealed(change)

    async def take_lease(self, owner: str, *, above: int, expiry_ms: int) -> Fence | None:
        """Take the lease of the assignor under a term above `above`; None while another node has it.

        With a key the owner is signed, and an unsigned owner is replaced: it has no key, so no process with a key
        follows its assignments.
        """
        signed, over = self.auth.signed_owner(owner), None
        term = await self._acquire(signed, above, expiry_ms, over)
        if term is None and self.auth.is_on:
            over = await self.lease_holder()
            if over is not None and not self.auth.is_signed_owner(over):
                self.auth.note_unsigned_lease(over)
                term = await self._acquire(signed, above, expiry_ms, over)
        return None if term is None else Fence(self.names.lease, signed, term)

    async def _acquire(self, owner: str, above: int, expiry_ms: int, over: str | None) -> int | None:
        return await self._bus.acquire(
            self.names.lease,
            self.names.term,
            owner,
            above=above,
            expiry_ms=expiry_ms,
            fenced_key=self.names.assignment,
            over=over,
        )

    async def keep_lease(self, fence: Fence, *, expiry_ms: int) -> bool:
        return await self._bus.renew(fence, expiry_ms=expiry_ms)

    async def give_lease_up(self, fence: Fence) -> None:
        await self._bus.release(fence)

    async def lease_holder(self) -> str | None:
        return await self._bus.lease_holder(self.names.lease)

    async def hint(self, hint: CommitHint) -> None:
        """Publish that a version was committed."""
        await self._bus.publish(self.names.channel, self._sealed(hint))

    async def announce(self, announcement: Announcement) -> None:
        """Write and publish the pipeline's announcement of its query."""
        spoken = self._sealed(announcement)
        await self._bus.put(self.names.announcement, spoken)
        await self._bus.publish(self.names.channel, spoken)

    async def announcement(self) -> Announcement | None:
        return await self._read(Announcement, self.names.announcement)

    async def listen(self, *, heartbeats: bool = True) -> AsyncIterator[Spoken | Lost | Back]:
        """Yield messages from now on. After each `Back` the caller must read the keys again.

        Without `heartbeats`, only the heartbeats arrive that nodes publish while Redis refuses writes.
        """
        names = self.names
        messages = self._bus.listen(names.channel, *([names.heartbeats] if heartbeats else []))
        turns = _Turns()
        try:
            async for message in messages:
                await turns.give()
                heard = await self._hear(message, turns) if isinstance(message, bytes) else message
                if heard is not None:
                    yield heard
        finally:
            if isinstance(
                messages, AsyncGenerator
            ):  # Close it now: the garbage collector would return its connection later.
                await messages.aclose()

    async def _hear(self, payload: bytes, turns: _Turns) -> Spoken | None:
        found = await self._authentic(payload, where=self.names.channel, is_heard=True)
        if found is None:
            return None
        kind = _SPOKEN.get(found.kind)
        if kind is None:
            self.refuse("message", f"a message of unknown kind {found.kind[:40]!r} ({self.names.channel})")
            return None
        return await self._decode(kind, found.document, turns, where=self.names.channel)

    async def _read(self, kind: type[M], key: str) -> M | None:
        stored = await self._bus.get(key)
        found = None if stored is None else await self._authentic(stored.payload, where=key)
        return None if found is None else await self._open(kind, found, _Turns(), where=key)

    async def _authentic(self, payload: bytes, *, where: str, is_heard: bool = False) -> Authentic | None:
        """Return the document in a payload if this cluster signed it; if `is_heard`, only once."""
        try:
            is_large = self.auth.is_on and len(payload) > LARGE_BYTES
            found = await asyncio.to_thread(self.auth.opened, payload) if is_large else self.auth.opened(payload)
            if is_heard:
                self.auth.refuse_repeated(found)
        except UnauthenticError as error:
            self._unauthentic(error, where)
            return None
        return found

    def _unauthentic(self, error: UnauthenticError, where: str) -> None:
        self.refuse(error.reason, f"{error} ({where})", source=error.source or where)

    def _sealed(self, message: Message) -> bytes:
        return sealed(self.auth, message)

    async def _open(self, kind: type[M], found: Authentic, turns: _Turns, *, where: str) -> M | None:
        if found.kind != _KIND_OF[kind]:
            self.refuse(kind.__name__.lower(), f"something that is not a {kind.__name__.lower()} ({where})")
            return None
        return await self._decode(kind, found.document, turns, where=where)

    async def _decode(self, kind: type[M], document: bytes, turns: _Turns, *, where: str) -> M | None:
        try:
            return await decode(kind, document, application_id=self.application_id, where=where, give=turns.give)
        except BadMessageError as error:
            self.refuse(kind.__name__.lower(), str(error))
        except (RecursionError, MemoryError) as error:
            self.refuse(kind.__name__.lower(), f"a document that cannot be read: {error!r:.500} ({where})")
        return None

    def handle(self, heard: Spoken, work: Callable[[Spoken], None]) -> None:
        """Handle one message. An error is counted, and does not end the subscription."""
        try:
            work(heard)
        except Exception as error:
            self.refuse(type(heard).__name__.lower(), f"a message that could not be handled: {error!r:.500}")
            log.debug("could not be handled", exc_info=True, extra={"action": "bad-message"})

    def refuse(self, kind: str, why: str, *, source: str | None = None) -> None:
        """Count and log a document that is ignored, or only partly used; with one log line for each `source`."""
        self.refused[kind] += 1
        count = self.refused[kind]
        if source is not None and ((kind, source) in self._sources or len(self._sources) < MAX_SOURCES):
            is_due = (kind, source) not in self._sources
            self._sources.add((kind, source))
        else:
            is_due = count & (count - 1) == 0
        if is_due:  # once, or the 1st, 2nd, 4th, 8th ...: a flood of them must not flood the log
            log.warning("left out %s", why, extra={"action": "bad-message", "kind": kind, "count": count})


async def applications_on(bus: Bus, *, limit: int | None = None) -> Applications:
    """Count the applications that have keys on a bus, from `limit` keys at most. Raises BusError."""
    keys = await bus.keys(KEY_PREFIX, limit=limit)
    return await asyncio.to_thread(Applications.of_keys, keys.found, is_all=keys.is_all)


async def announcement_on(bus: Bus, auth: MessageAuth, application_id: str) -> Announcement | None:
    """Return the announcement of any application. Raises BusError, BadMessageError or UnauthenticError."""
    stored = await bus.get(Names(application_id).announcement)
    return None if stored is None else read_announcement(auth, application_id, stored.payload)


def read_announcement(auth: MessageAuth, application_id: str, payload: bytes) -> Announcement:
    """Verify and decode a stored announcement. Raises BadMessageError or UnauthenticError."""
    key, found = Names(application_id).announcement, auth.opened(payload)
    if found.kind != _KIND_OF[Announcement]:
        raise BadMessageError("it is not an announcement", where=key)
    try:
        return Announcement.decode(found.document, application_id=application_id, where=key)
    except (RecursionError, MemoryError) as error:
        raise BadMessageError(f"the announcement is malformed: {error!r:.200}", where=key) from None


async def let_go(bus: Bus, auth: MessageAuth, announcement: Announcement) -> None:
    """Remove the location from an announcement, so that no node serves the query because of it. Raises BusError.

    It is written without a location rather than deleted, because a deletion proves nothing: a stranger without the
    cluster's key can delete it, too.
    """
    without = sealed(auth, announcement.model_copy(update={"checkpoint": None}))
    await bus.put(Names(announcement.application_id).announcement, without, expiry_ms=LET_GO_EXPIRY_MS)
    await bus.publish(ANNOUNCED, announcement.application_id.encode())


class _Turns:
    """A clock that lets other tasks run at intervals during work that never awaits."""

    def __init__(self) -> None:
        self._until_s = time.monotonic() + SLICE_S

    async def give(self) -> None:
        if time.monotonic() >= self._until_s:
            await asyncio.sleep(0)
            self._until_s = time.monotonic() + SLICE_S


def sealed(auth: MessageAuth, message: Message) -> bytes:
    """Return the bytes of a document on the bus: its signature if `auth` has a key, kind, line end, JSON."""
    return auth.sealed(_KIND_OF[type(message)], message.encode())


def digest_of(catalogue: Catalogue) -> str:
    """Return the name of a catalogue: a hash of its content."""
    return digest_of_document(catalogue.encode())


def _is_named(document: bytes, digest: str) -> bool:
    try:
        return digest_of_document(document) == digest
    except (TypeError, RecursionError):  # the JSON is nested more deeply than any release writes
        return False


def digest_of_document(document: bytes) -> str:
    """Return the same hash for a catalogue's JSON as it was written, with fields that only another release knows."""
    return hashlib.sha256(orjson.dumps(orjson.loads(document), option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]
