"""The watched partitions of a node: new versions are compared with what is watched, and watchers of changes are woken.

Worker threads only put a published version into its partition's queue. Everything else happens on the event loop, in
slices, beside lookups and never as a part of one. Where the changes since the version before are in memory, only
watched keys among them are read. Else, after a jump to a snapshot, and in stores where several records make one answer,
each watched key is read and compared; once, however many watch it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast

import orjson

from understudy_node.generations import Generation
from understudy_node.replica.read_views import Reading
from understudy_node.replica.task import TaskReplica
from understudy_node.replica.task_view import TaskView
from understudy_node.stores.lookup import FindingReader, Hidden, Said, StoreReader
from understudy_shared.base.words import LagInfo, StoreName
from understudy_shared.http.problems import Problem
from understudy_shared.questions.lookup.batches import NOT_FOUND
from understudy_shared.questions.watch.choice import FeedWatch, MissedChange, SharedKey, SharedPart
from understudy_shared.questions.watch.events import EndReason, KeyEvent, key_event
from understudy_shared.questions.watch.streams import WatchEndedError, WatchStream, slices_of
from understudy_shared.reads.bounds import Selection
from understudy_shared.reads.tokens import Position

MAX_WAITING_VIEWS: Final = 64
"""Number of versions that wait to be compared. Beyond it the oldest are left out, which is a jump."""

_NEXT_CURSOR = re.compile(rb',"next_cursor":"[^"]*",$')


class NodeKey(SharedKey):
    """A watched key: its row, and the members of its present answer, which its event has."""

    __slots__ = ("members", "row")

    def __init__(self, row: bytes, printed: bytes) -> None:
        super().__init__(printed)
        self.row = row
        self.members = b""


class KeyChange(NamedTuple):
    """A change of the key with this index: the version, without its state, and the members of its answer then."""

    at: int
    view: TaskView
    members: bytes


class WatchedTask(SharedPart):
    """The keys of a partition of a store that are watched, with the elements that `selection` names.

    `view` is the version that all of them were compared with. Only the event loop uses it; `waiting` any thread.
    """

    __slots__ = ("feeds", "keys", "partition", "reader", "reads", "replica", "selection", "view", "waiting")

    def __init__(self, reader: StoreReader, partition: int, selection: Selection, view: TaskView) -> None:
        super().__init__(view.version, position_of(reader, view))
        self.reader = reader
        self.partition = partition
        self.selection = selection
        self.replica: TaskReplica = reader.replicas[partition]
        self.view = view
        self.keys: dict[bytes, NodeKey] = {}
        """The keys by their bytes as the store has them."""
        self.feeds: dict[FeedWatch, object] = {}
        """The feeds of routers, with their streams."""
        self.waiting: deque[TaskView] = deque(maxlen=MAX_WAITING_VIEWS)
        """Versions that were published after `view`."""
        self.reads = 0
        """Number of keys that were read."""

    def join(self, rows: Sequence[tuple[bytes, bytes]]) -> list[NodeKey]:
        """Return these keys, each a row and its JSON. Those that are not watched yet are read."""
        prefix = self.reader.row_prefix
        new = [(row, printed) for row, printed in rows if prefix + row not in self.keys]
        for (row, printed), said in zip(new, self._said([row for row, _ in new], self.view), strict=True):
            key = self.keys[prefix + row] = NodeKey(row, printed)
            key.members = members_of(said)
            key.size = len(key.members)
        return [self.keys[prefix + row] for row, _ in rows]

    def leave(self, key: SharedKey, user: object) -> None:
        """Take a watcher from a key, and the key away with its last one."""
        assert isinstance(key, NodeKey), "its own"
        key.users.discard(user)
        if not key.users:
            self.keys.pop(self.reader.row_prefix + key.row, None)

    def first_event(self, key: SharedKey) -> bytes:
        assert isinstance(key, NodeKey), "its own"
        data = data_of(self.reader, self.replica, key.printed, key.members, self.view)
        return key_event(KeyEvent.SNAPSHOT, data)

    def compare(self, view: TaskView) -> Iterator[list[NodeKey]]:
        """Compare with the next version; yield no keys after each slice, and at the end those that have changed."""
        before = self.view
        if view.version < before.version:
            return
        compared: set[NodeKey] = set()
        changed: list[tuple[NodeKey, bytes, bytes]] = []
        candidates = self._candidates(before, view, compared)
        step = self.reader.keys_at_once
        for start in range(0, len(candidates), step):
            changed += self._differing(candidates[start : start + step], view)
            yield []
        changed += self._differing(self._candidates(before, view, compared), view)  # those that joined meanwhile
        yield self._show(view, changed)

    def _show(self, view: TaskView, changed: Sequence[tuple[NodeKey, bytes, bytes]]) -> list[NodeKey]:
        """Make a version the present one. No other code runs meanwhile, so a position never overtakes an event."""
        is_jump = view.version > self.view.version + 1
        for key, members, event in changed:
            key.members, key.event, key.kind = members, event, kind_of(members)
            key.changed(view.version, len(event))
        if is_jump:
            for key in self.keys.values():
                key.jumped_to = view.version
        self.view, self.version, self.position = view, view.version, position_of(self.reader, view)
        news = list(self.keys.values()) if is_jump else [key for key, _, _ in changed]
        for feed in self.feeds:
            feed.changed(news)
        return news

    def _candidates(self, before: TaskView, view: TaskView, compared: set[NodeKey]) -> list[NodeKey]:
        """Return the keys that may have changed and are not in `compared`, and put them there.

        A key that left and came back meanwhile is another object, read at the version before.
        """
        keys = self.keys
        maybe = _may_have_changed(self.reader, before, view)
        rows = keys.keys() if maybe is None else set().union(*(keys.keys() & changes.keys() for changes in maybe))
        found = [key for row in rows if (key := keys[row]) not in compared]
        compared.update(found)
        return found

    def _differing(self, keys: Sequence[NodeKey], view: TaskView) -> Iterator[tuple[NodeKey, bytes, bytes]]:
        """Yield the keys whose answer differs at a version, with the members of the new answer and its event."""
        for key, said in zip(keys, self._said([key.row for key in keys], view), strict=True):
            members = members_of(said)
            if not are_equal(members, key.members):
                yield key, members, changed_event(self.reader, self.replica, key.printed, members, view)

    def head(self, printed: bytes, members: bytes) -> int:
        """Return the number of bytes in the data of an event that do not depend on the version."""
        return len(b'{"store":,"key":,') + len(self.reader.json_name) + len(printed) + len(members)

    def tail(self, view: TaskView) -> bytes:
        """Return the JSON of the age and origin of a version, which ends each answer."""
        return tail_of(self.replica, view)

    def _said(self, rows: Sequence[bytes], view: TaskView) -> list[Said]:
        self.reads += len(rows)
        return said_of(self.reader, rows, view, self.partition, self.selection)


def said_of(
    reader: StoreReader, rows: Sequence[bytes], view: TaskView, partition: int, selection: Selection
) -> list[Said]:
    """Look up some keys of a partition in a version, and return the results."""
    if not rows:
        return []
    reading = Reading(view, LagInfo(view.version, None, None, None), b"")
    return reader.find_many(rows, reading, partition, selection)


def members_of(said: Said) -> bytes:
    """Return the members of an answer. Those of a problem leave out details, which may name files."""
    if isinstance(said, Problem):
        kind = said.type
        return b'"problem":%b,' % orjson.dumps({"type": kind.slug, "title": kind.title, "status": kind.status})
    return NOT_FOUND if said is None else said.members if isinstance(said, Hidden) else said


def kind_of(members: bytes) -> KeyEvent:
    """Return the kind of event for a change to these members."""
    return KeyEvent.DELETED if members.startswith(NOT_FOUND) else KeyEvent.VALUE


def tail_of(replica: TaskReplica, view: TaskView) -> bytes:
    """Return the JSON of the age and origin of a version, which ends each answer."""
    return replica.readings.of(view).tail.rstrip(b"\n")


def data_of(reader: StoreReader, replica: TaskReplica, printed: bytes, members: bytes, view: TaskView) -> bytes:
    """Return the data of the event for a key's answer at a version."""
    return b'{"store":%b,"key":%b,%b%b' % (reader.json_name, printed, members, tail_of(replica, view))


def changed_event(reader: StoreReader, replica: TaskReplica, printed: bytes, members: bytes, view: TaskView) -> bytes:
    """Return the event for a change of a key."""
    return key_event(kind_of(members), data_of(reader, replica, printed, members, view))


def changes_of(
    reader: StoreReader, replica: TaskReplica, printed: Sequence[bytes], entries: Sequence[KeyChange]
) -> list[MissedChange]:
    """Return changes of keys, each with its event."""
    return [
        MissedChange(
            at,
            view.version,
            kind_of(members),
            changed_event(reader, replica, printed[at], members, view),
            position_of(reader, view),
        )
        for at, view, members in entries
    ]


def position_of(reader: StoreReader, view: TaskView) -> str:
    """Return the token of a version."""
    return Position(reader.application_id, reader.lineage, view.version, view.committed_at_us).encode()


def are_equal(now: bytes, before: bytes) -> bool:
    """Whether two answers say the same of a key. The cursor to a next page names its version, so it is left out."""
    return now == before or _NEXT_CURSOR.sub(b",", now) == _NEXT_CURSOR.sub(b",", before)


def _may_have_changed(
    reader: StoreReader, before: TaskView, view: TaskView
) -> Sequence[Mapping[bytes, bytes | None]] | None:
    """Return mappings that have all keys of the store that may have changed between two versions; None: any key may
    have. That is so with another base, which may come from a restore that repaired something.
    """
    stores = view.stores if isinstance(reader, FindingReader) else (reader.store.store_name,)
    if any(view.stores[name].base is not before.stores[name].base for name in stores):
        return None
    changes = [view.stores[name].changes_since(before.version) for name in stores]
    if not isinstance(reader, FindingReader):
        return changes[0]
    # Several records make an answer, and the watermark may make elements expire.
    has_same_watermark = (before.watermark_ms, before.next_watermark_ms) == (view.watermark_ms, view.next_watermark_ms)
    return () if has_same_watermark and all(each is not None and not any(each) for each in changes) else None


log = logging.getLogger(__name__)

_Place = tuple[str, int, Selection]


class WatchHub:
    """The watched partitions of the generation that is served. `generation` returns it."""

    def __init__(self, generation: Callable[[], Generation | None]) -> None:
        self._generation = generation
        self._seen: Generation | None = None
        self._tasks: dict[_Place, WatchedTask] = {}
        self._followers: dict[_Place, Callable[[TaskView], None]] = {}
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._reads_before = 0
        """Number of keys that were read for partitions that are watched no more."""
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def reads(self) -> int:
        """Number of keys that were read because they are watched."""
        return self._reads_before + sum(task.reads for task in self._tasks.values())

    def changed(self) -> None:
        """Check whether another generation is served now; called from any thread after each publication."""
        if self._tasks and self._generation() is not self._seen:
            self._wake()

    def join(self, reader: StoreReader, partition: int, selection: Selection, view: TaskView) -> WatchedTask:
        """Return a watched partition that shows `view` or later. Raises WatchEndedError if it is read otherwise now."""
        if self._generation() is not self._seen:
            self._look()
        if self._seen is None or self._seen.readers.get(reader.store.name) is not reader:
            raise WatchEndedError(EndReason.MOVED)
        place = (reader.store.name, partition, selection)
        task = self._tasks.get(place)
        if task is None:
            task = self._tasks[place] = WatchedTask(reader, partition, selection, view)
            self._follow(place, task)
        return task

    def leave(self, task: WatchedTask, keys: Iterable[SharedKey], stream: WatchStream) -> None:
        """Take a watcher from its keys, and the partition away with its last one."""
        for key in keys:
            task.leave(key, stream)
        place = (task.reader.store.name, task.partition, task.selection)
        if not task.keys and not task.feeds and self._tasks.get(place) is task:
            self._drop(place)

    def _follow(self, place: _Place, task: WatchedTask) -> None:
        self._loop = asyncio.get_running_loop()
        if self._running is None:
            self._running = self._loop.create_task(self._run(), name="compare watched keys")

        def follow(view: TaskView) -> None:
            task.waiting.append(view)
            self._wake()

        self._followers[place] = follow
        task.replica.followers += (follow,)
        view = task.replica.view
        if view is not None and view.version > task.version:
            follow(view)  # published before it was followed

    def _drop(self, place: _Place) -> None:
        task, follow = self._tasks.pop(place), self._followers.pop(place)
        task.replica.followers = tuple(each for each in task.replica.followers if each is not follow)
        self._reads_before += task.reads

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._woken.set)

    async def stop(self) -> None:
        """Stop comparing."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])

    # ---- new versions

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            if self._generation() is not self._seen:
                self._look()
            for task in list(self._tasks.values()):
                try:
                    await self._compare(task)
                except Exception:
                    log.exception("watched keys could not be compared", extra={"action": "watch-compare-failed"})
                    self._end(task, EndReason.UNAVAILABLE)

    async def _compare(self, task: WatchedTask) -> None:
        while task.waiting:
            for changed in task.compare(task.waiting.popleft()):
                await self._tell(changed)
                await asyncio.sleep(0)
            for stream in task.feeds.values():  # routers hear of each version
                cast(WatchStream, stream).wake()

    async def _tell(self, changed: Sequence[NodeKey]) -> None:
        """Wake the watchers of changed keys, a slice in a turn of the loop."""
        if not changed:
            return
        streams = {cast(WatchStream, stream) for key in changed for stream in key.users}
        for few in slices_of(streams):
            for stream in few:
                stream.wake()
            await asyncio.sleep(0)

    def _look(self) -> None:
        """Keep the partitions that the new generation serves in the same way, and end the watches of all others."""
        before, generation = self._seen, self._generation()
        self._seen = generation
        is_same = (
            before is not None
            and generation is not None
            and generation.description is before.description
            and generation.aliases is before.aliases
        )
        for place, task in list(self._tasks.items()):
            reader = generation.readers.get(StoreName(place[0])) if generation is not None and is_same else None
            if reader is not None and reader.replicas.get(task.partition) is task.replica:
                task.reader = reader
            else:
                self._end(task, EndReason.MOVED)

    def _end(self, task: WatchedTask, reason: EndReason) -> None:
        """End the watches of a partition. A client that reconnects gets a new `WatchedTask`."""
        place = (task.reader.store.name, task.partition, task.selection)
        if self._tasks.get(place) is task:
            self._drop(place)
        users = {stream for key in task.keys.values() for stream in key.users}
        for stream in users.union(task.feeds.values()):
            cast(WatchStream, stream).end(reason)
