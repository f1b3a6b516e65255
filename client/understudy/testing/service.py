"""The service of `understudy serve` in the process of a test: its process of applications, on a loopback port.

Its checkpoint is on local disk, as Spark's HDFS-backed provider writes it. Each store is a grouped aggregation with one
value for each key: the store with number N is operator N. Replicas are held with `Node.hold_at`, the clock is moved
forward, and an application in front of the service's injects faults. All else is the service.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cramjam
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from understudy.testing.stores import Change, DeclaredStore
from understudy_node.checkpoint.description import describe
from understudy_node.checkpoint.files import LocalFiles
from understudy_node.fleet.application import NodeApplication, NodeProcess
from understudy_node.fleet.process import FleetProcess
from understudy_node.node import Node
from understudy_node.settings import NodeSettings
from understudy_node.stores.stores import AliasError, read_aliases, served_stores
from understudy_shared.auth.access import Access
from understudy_shared.auth.principals import ANYBODY
from understudy_shared.base.clock import SystemClock
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.words import HostInfo
from understudy_shared.fleet.applications_file import ApplicationSpec
from understudy_shared.fleet.dispatching import Fleet
from understudy_shared.http.edge import JSON_TYPE, Receive, Scope, Send, send_problem
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.http.target import application_target, split_path
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.direct import Exchange
from understudy_shared.server.service import BACKLOG, NOT_STARTED, Service, bound_socket
from understudy_shared.spark.json_values import RowParser, compile_json_parser
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import schema_json
from understudy_shared.spark.unsafe_row import RowEncoder, compile_row_encoder

_CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.compression.codec": "zstd",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
}
_MAX_UTF_BYTES = 65_535
"""Longest text of Java's `writeUTF`; Spark cuts longer schemas."""

_MINUS_ONE = struct.pack(">i", -1)
"""The length of a value that is deleted, and the end of a delta."""

_Record = tuple[bytes, bytes | None]


class _Writer(NamedTuple):
    """The codecs of one store."""

    codec: KeyCodec
    parse_value: RowParser
    encode_value: RowEncoder

    def record(self, change: Change, partitions: int) -> tuple[int, _Record]:
        """Return the partition of a change, and the bytes that Spark would write. Raises BadKeyError."""
        key, value = change
        row = self.codec.parse_json(key)
        stored = None if value is None else self.encode_value(self.parse_value(value))
        return self.codec.partition(row, partitions), (self.codec.encode(row), stored)


class Checkpoint:
    """A checkpoint in a new folder. One thread commits; `version` is the last one."""

    def __init__(self, path: Path, stores: Mapping[str, DeclaredStore], partitions: int) -> None:
        """Write what comes before the first batch."""
        self.version = 0
        self._partitions = partitions
        self._path, self._elsewhere = path, path.with_name(f"{path.name}.away")
        self._folder = path
        self._writers = {
            name: _Writer(KeyCodec(each.key), compile_json_parser(each.value), compile_row_encoder(each.value))
            for name, each in stores.items()
        }
        for folder in ("commits", "offsets"):
            (path / folder).mkdir(parents=True)
        self._write("metadata", _json({"id": str(uuid.uuid4())}))
        for number, each in enumerate(stores.values()):
            for partition in range(partitions):
                (path / f"state/{number}/{partition}").mkdir(parents=True)
            operator = {
                "operatorInfo": {"operatorId": number, "operatorName": "stateStoreSave"},
                "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
            }
            self._write(f"state/{number}/_metadata/metadata", b"v1\n" + _json(operator))
            schema = _utf(b"v2") + _chunked(schema_json(each.key)) + _chunked(schema_json(each.value))
            self._write(f"state/{number}/0/_metadata/schema", schema)

    def commit(self, changes: Mapping[str, Sequence[Change]], *, wall_us: int) -> int:
        """Write the next version, with the changes of each store, and return it.

        Raises BadKeyError for a key or a value that does not fit; nothing is written then.
        """
        batch = self.version
        deltas: dict[str, bytes] = {}
        for number, (name, writer) in enumerate(self._writers.items()):
            parts: list[list[_Record]] = [[] for _ in range(self._partitions)]
            for change in changes.get(name, ()):
                partition, record = writer.record(change, self._partitions)
                parts[partition].append(record)
            deltas |= {f"state/{number}/{each}/{batch + 1}.delta": _delta(part) for each, part in enumerate(parts)}
        conf = {**_CONF, "spark.sql.shuffle.partitions": str(self._partitions)}
        offsets = {"batchWatermarkMs": 0, "batchTimestampMs": wall_us // 1000, "conf": conf}
        for path, data in deltas.items():
            self._write(path, data)
        self._write(f"offsets/{batch}", b"v1\n%b\n{}" % _json(offsets))
        draft = self._write("commit.draft", b"v1\n" + _json({"nextBatchWatermarkMs": 0}))
        os.utime(draft, ns=(wall_us * 1000, wall_us * 1000))
        draft.rename(self._folder / f"commits/{batch}")  # whole, as Spark does it: it is read at once
        self.version += 1
        return self.version

    def move_away(self, *, is_away: bool) -> None:
        """Move the folder away, like lost storage, or bring it back."""
        folder = self._elsewhere if is_away else self._path
        if folder != self._folder:
            self._folder = self._folder.rename(folder)

    def _write(self, path: str, data: bytes) -> Path:
        full = self._folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(data)
        return full


def _json(document: object) -> bytes:
    return json.dumps(document).encode("ascii")


def _delta(records: Iterable[_Record]) -> bytes:
    sized = b"".join(_sized(key) + _sized(value) for key, value in records)
    return bytes(cramjam.zstd.compress(sized + _MINUS_ONE))


def _sized(data: bytes | None) -> bytes:
    return _MINUS_ONE if data is None else struct.pack(">i", len(data)) + data


def _chunked(ascii_text: bytes) -> bytes:
    chunks = [ascii_text[at : at + _MAX_UTF_BYTES] for at in range(0, len(ascii_text), _MAX_UTF_BYTES)]
    return struct.pack(">i", len(chunks)) + b"".join(map(_utf, chunks))


def _utf(ascii_text: bytes) -> bytes:
    """Return a text as Java's `writeUTF` does: ASCII is the same in its UTF-8."""
    return struct.pack(">H", len(ascii_text)) + ascii_text


ALONE = "testing"
"""The id of the application of a server of one."""

REFRESH_MS = 50
"""Longest time in ms between two polls: while nothing is committed, time lag is at most that."""

LIMIT_S = 30.0
"""Longest time in seconds for the start, the end, and until a commit is visible, which take milliseconds."""

LAST_ANSWERS_S = 5.0
"""Longest time in seconds for the answers that are being made at the end."""

_CHECK_S = 0.0005

End = Callable[[], None]
"""A function that ends a fault; called again it does nothing."""


class MovedClock(SystemClock):
    """The machine's clocks, and the time by which a test moved both forward."""

    moved_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.moved_ms

    def wall_us(self) -> int:
        return super().wall_us() + round(self.moved_ms * 1000)


class _Settings(NodeSettings):
    """Settings that no variable and no file of the machine changes."""

    checkpoint: str = ""
    own: tuple[ApplicationSpec, ...]

    @property
    def is_fleet(self) -> bool:
        return True

    def named(self) -> tuple[ApplicationSpec, ...]:
        return self.own

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


@dataclass(slots=True, eq=False)
class Fault:
    """A fault for requests of the API: a delay first, then an outcome other than the answer, if there is one.

    `store` limits it to the calls of one store, `times` to so many requests.
    """

    application: str
    delay_s: float = 0.0
    problem: Problem | None = None
    is_cut: bool = False
    store: str | None = None
    times: int | None = None

    def meets(self, application: object, path: Sequence[str]) -> bool:
        """Whether it happens to a request of this path, which counts then."""
        is_other = application != self.application or (self.store is not None and path[1:3] != ["stores", self.store])
        if self.times == 0 or is_other:
            return False
        self.times = None if self.times is None else self.times - 1
        return True


class _Faults:
    """The application of the service, with faults. Without any it answers as it does alone."""

    def __init__(self, process: FleetProcess, alone: str | None) -> None:
        """Take the process. `alone`: the only application, which answers as `understudy serve` with one checkpoint."""
        self.access = process.shared.access
        self._process, self._alone = process, alone
        self._faults: tuple[Fault, ...] = ()
        self._ended = asyncio.Event()

    @property
    def _app(self) -> LookupsFirst | Fleet[NodeApplication]:
        alone = None if self._alone is None else self._process.applications.get(self._alone)
        return self._process.app if alone is None else alone.app

    def begin(self, fault: Fault) -> End:
        """Let a fault happen until the function that is returned is called. Called from any thread."""
        self._faults = (*self._faults, fault)

        def end() -> None:
            self._faults = tuple(each for each in self._faults if each is not fault)

        return end

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        """Answer as the application does; requests that may meet a fault come by ASGI."""
        return not self._faults and self._app.answer_directly(target, exchange)

    async def end_streams(self) -> None:
        """End streams, and delays, in good order: the service stops."""
        self._ended.set()
        await self._process.app.end_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for fault in self._met(scope):
            if fault.delay_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), fault.delay_s)
            if fault.is_cut:  # an answer that does not end: the protocol closes the connection
                head = [(b"content-type", JSON_TYPE), (b"content-length", b"1")]
                await send({"type": "http.response.start", "status": 200, "headers": head})
                return
            if fault.problem is not None:
                await send_problem(send, fault.problem)
                return
        app = self._process.app if scope["type"] == "lifespan" else self._app
        await app(scope, receive, send)

    def _met(self, scope: Scope) -> list[Fault]:
        if not self._faults or scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            return []
        raw_path = scope["raw_path"]
        try:
            path = split_path(application_target(raw_path)[1])
        except ProblemError:  # the application refuses such a path
            return []
        application = self._alone or self.access.applications.of(raw_path, ANYBODY)
        return [fault for fault in self._faults if fault.meets(application, path)]


class _DirectServer(Service):
    """A server that ends at once: those who ask it are in this process."""

    def __init__(self, app: _Faults, guard: ConnectionGuard, listening: Callable[[], None]) -> None:
        super().__init__(app, guard=guard, listening=listening)
        self._app = app
        self.finished = asyncio.Event()

    async def main_loop(self) -> None:
        await self.finished.wait()
        await self._app.end_streams()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=LAST_ANSWERS_S)
        await self.lifespan.shutdown()
        self._guard.stop()
        self._access.stop()


class LocalService:
    """The service over checkpoints that a test commits. Any thread may call it."""

    def __init__(self, declared: Mapping[str, Mapping[str, DeclaredStore]], *, partitions: int, port: int) -> None:
        """Write version 1 of each application, by its id, and serve it. One without a name is served alone.

        Raises UnderstudyError for a result that does not fit, and for a port that is taken.
        """
        self.is_closed = False
        self.clock = MovedClock()
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="understudy-")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun = threading.Event()
        try:
            root = Path(self._folder.name)
            specs = []
            self.queries = {}
            for number, (name, stores) in enumerate(declared.items()):
                checkpoint = Checkpoint(root / f"checkpoint-{number}", stores, partitions)
                checkpoint.commit({each: store.rows for each, store in stores.items()}, wall_us=self.clock.wall_us())
                specs.append(_spec(name or ALONE, root / f"checkpoint-{number}", stores))
                self.queries[name] = Query(self, name or ALONE, checkpoint)
            listener = bound_socket("127.0.0.1", port)
            listener.listen(BACKLOG)
            self.port: int = listener.getsockname()[1]
            settings = _Settings(
                own=tuple(specs), data_dir=root / "node", lag_refresh_ms=REFRESH_MS, workers=2, port=self.port
            )
            guard = ConnectionGuard()
            shared = NodeProcess(settings, Access(), HostInfo("127.0.0.1", self.port), guard, clock=self.clock)
            self.process = FleetProcess(settings, shared)
            self.faults = _Faults(self.process, ALONE if "" in declared else None)
            self._server = _DirectServer(self.faults, guard, self._listening)
            self._thread = threading.Thread(target=self._run, args=(listener,), name="understudy testing", daemon=True)
            self._thread.start()
            if not self._begun.wait(LIMIT_S) or self._loop is None:
                raise UnderstudyError(NOT_STARTED, fix="The log says why")
        except BaseException:
            self._folder.cleanup()
            raise
        try:
            for query in self.queries.values():
                query.wait()
        except BaseException:
            self.close()
            raise

    def _listening(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun.set()

    def _run(self, listener: socket.socket) -> None:
        try:
            self._server.run(sockets=[listener])
        finally:
            self._begun.set()

    def move_clock(self, by_ms: float) -> None:
        """Let time pass. On return all nodes have polled since: only those held back know less."""
        with self._lock:
            self.clock.moved_ms += by_ms
            since_ms = self.clock.monotonic_ms()
        for query in self.queries.values():
            query.wait(since_ms=since_ms)

    def close(self) -> None:
        """End the service, and remove its folder."""
        self.is_closed = True
        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._server.finished.set)
            self._thread.join(LIMIT_S)
        self._folder.cleanup()


class Query:
    """The query of one application: what it commits, and how far its node lags. Any thread may call it."""

    def __init__(self, service: LocalService, application: str, checkpoint: Checkpoint) -> None:
        self._service, self._application, self._checkpoint = service, application, checkpoint
        self._lock = threading.RLock()
        self._holds: set[object] = set()
        self._losses: set[object] = set()
        """The lags that hold replicas at a version, and those that took the storage."""

    @property
    def version(self) -> int:
        """The version that was committed last."""
        return self._checkpoint.version

    def wall_us(self) -> int:
        """Return the time of the service's clock."""
        return self._service.clock.wall_us()

    def commit(self, changes: Mapping[str, Sequence[Change]]) -> int:
        """Commit the next version, wait until it is visible unless replicas lag, and return it."""
        with self._lock:
            self._require_open()
            version = self._checkpoint.commit(changes, wall_us=self.wall_us())
            self.wait()
            return version

    def lag(self, age_ms: float | None, versions: int) -> End:
        """Hold replicas at the version that they show: the query commits `versions` more, and `age_ms` passes.

        Without an age the storage is lost, so that lag is unknown.
        """
        mark = object()
        with self._lock:
            self._require_open()
            if age_ms is None:
                self._losses.add(mark)
                self._checkpoint.move_away(is_away=True)
                self.wait()
            else:
                if not self._holds:
                    self._hold_at(self.version)
                self._holds.add(mark)
                for _ in range(versions):
                    self.commit({})
                self._service.move_clock(age_ms)
        return lambda: self._end_lag(mark)

    def _end_lag(self, mark: object) -> None:
        with self._lock:
            self._holds.discard(mark)
            self._losses.discard(mark)
            if self._service.is_closed:
                return
            self._checkpoint.move_away(is_away=bool(self._losses))
            if not self._holds:
                self._hold_at(None)
            self.wait()

    def fault(
        self, store: str | None, times: int | None, *, problem: str | None = None, detail: str = "", **others: Any
    ) -> End:
        """Let requests of the API meet a problem, named by its type, a delay, or a connection that is cut."""
        answer = None if problem is None else _problem(problem, detail)
        return self._service.faults.begin(Fault(self._application, problem=answer, store=store, times=times, **others))

    def _hold_at(self, version: int | None) -> None:
        assert self._node is not None, "it is served since the start"
        self._node.hold_at(version)

    @property
    def _node(self) -> Node | None:
        application = self._service.process.applications.get(self._application)
        return None if application is None else application.node

    def _require_open(self) -> None:
        if self._service.is_closed:
            raise UnderstudyError("the server is closed", fix="Make another one")

    # ---- waiting for the node

    def wait(self, *, since_ms: float = 0.0) -> None:
        """Wait until the node shows what it can: the last commit; while it is held, that there is one; while the
        storage is lost, that it does not know. `since_ms`: by a poll that began later.
        """
        limit_s = time.monotonic() + LIMIT_S
        if (node := self._node) is not None:
            node.wake()
        while not (self._service.is_closed or self._shows_what_it_can(since_ms)):
            if time.monotonic() > limit_s:
                why = "; ".join(self._service.process.not_ready()) or "the node is behind"
                raise UnderstudyError(
                    f"version {self.version} does not become visible: {why}", fix="A bug: please report it with the log"
                )
            time.sleep(_CHECK_S)

    def _shows_what_it_can(self, since_ms: float) -> bool:
        if (node := self._node) is None:
            return False
        end = node.end
        if self._losses:
            return end.confirmed_ms is None
        if end.version != self.version or end.confirmed_ms is None or end.confirmed_ms < since_ms:
            return False
        replicas = [] if node.generation is None else node.generation.replicas
        views = [each.view for each in replicas]
        shows_end = bool(views) and all(view is not None and view.version == self.version for view in views)
        return bool(self._holds) or shows_end


def _spec(application: str, checkpoint: Path, stores: Mapping[str, DeclaredStore]) -> ApplicationSpec:
    """Write the alias file of an application, and return its entry. Raises SettingsError for a wrong result."""
    aliases = checkpoint.with_name(f"{checkpoint.name}.toml")
    aliases.write_text("\n".join(_alias_lines(stores)), encoding="utf-8")
    try:
        served_stores(describe(LocalFiles(checkpoint)), read_aliases(aliases))
    except AliasError as error:
        names = list(stores)
        place = error.where.rpartition(": ")[2]
        where = re.sub(r"\bop(\d+)\b", lambda found: f"store {names[int(found[1])]}", place)
        raise SettingsError(error.what, where=where, fix=error.fix) from None
    return ApplicationSpec(id=application, checkpoint=str(checkpoint), aliases=aliases)


def _alias_lines(stores: Mapping[str, DeclaredStore]) -> Iterator[str]:
    for number, (name, store) in enumerate(stores.items()):
        yield f"[op{number}]\nname = {_toml(name)}"
        if store.result:
            yield f"[op{number}.result]"
            yield from (f"{_toml(column)} = {_toml(made)}" for column, made in store.result.items())


def _toml(value: object) -> str:
    """Return a value as TOML; a string of JSON is one of TOML."""
    match value:
        case Mapping():
            return "{" + ", ".join(f"{_toml(str(name))} = {_toml(each)}" for name, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _problem(slug: str, detail: str) -> Problem:
    """Return a problem by its type, which may be repeated at once. Raises SettingsError for an unknown type."""
    kind = next((each for each in ProblemType if each.slug == slug), None)
    if kind is None:
        known = ", ".join(sorted(each.slug for each in ProblemType))
        raise SettingsError(f"there is no problem {slug!r}", where="problem", fix=f"Give one of: {known}")
    return Problem(kind, detail or f"the test asked for it: {kind.title}", where="understudy.testing", retry_after_s=0)
