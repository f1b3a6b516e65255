"""A node that follows a checkpoint through every fault, with a note of everything its readers could see.

Every view is noted when it is published, by the thread that publishes it, and views and HTTP answers are sampled all
the time besides, so that nothing shown for an instant escapes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.oracle.spark_reader import OracleRow
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.files import DEFAULT_MAX_READ_BYTES, LocalFiles
from understudy_node.generations import ROW_PREFIX
from understudy_node.replica.task_view import TaskView
from understudy_shared.base.words import StoreName
from understudy_shared.spark.unsafe_row import compile_row_decoder

STORE = StoreName("op0")


class ReadFiles(LocalFiles):
    """A checkpoint on disk; `paths` are the files that were read of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.paths: list[str] = []

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        data = super().read(path, max_bytes)
        self.paths.append(path)
        return data


@dataclass(frozen=True, slots=True)
class Answered:
    """One HTTP answer, as a value to put into a set."""

    key: str
    partition: int
    version: int
    value: str | None


@dataclass(slots=True)
class Seen:
    """`shown`: contents by (partition, version); `answers` and `marks` (partition, version, mark) by HTTP."""

    shown: dict[tuple[int, int], set[frozenset[tuple[bytes, bytes]]]] = field(default_factory=dict)
    answers: set[Answered] = field(default_factory=set)
    marks: set[tuple[int, int, str]] = field(default_factory=set)


class Follower:
    """Follows `checkpoint` in threads of its own; looks `keys` up all the time."""

    def __init__(self, served: ServedNode, files: ReadFiles, keys: Sequence[str]) -> None:
        self.served = served
        self.files = files
        self.seen = Seen()
        self.failure: BaseException | None = None
        self._body = json.dumps({"keys": [[key] for key in keys]}).encode()
        self._noted: dict[int, TaskView] = {}
        self._noting = threading.Lock()
        self._ended = threading.Event()
        self._wake_readers = served.node.on_published
        served.node.on_published = self._published
        self._note_views()
        self._thread = threading.Thread(target=self._sample, name="follower")
        self._thread.start()

    def wait_for_version(self, version: int) -> None:
        """Return when every key is answered from `version` or later: whether it may be later is the test's claim."""

        def reached() -> bool:
            answers = self._last_answers()
            return self.failure is not None or (bool(answers) and min(each.version for each in answers) >= version)

        wait_until(reached, what=f"answers of version {version}")
        assert self.failure is None, repr(self.failure)

    def contents(self) -> dict[tuple[int, int], list[list[OracleRow]]]:
        """What each partition showed as each version: one content each, if all is well."""
        generation = self.served.node.generation
        assert generation is not None
        store, prefix = generation.readers[STORE].store, len(ROW_PREFIX[generation.layout.provider])
        key, value = compile_row_decoder(store.key_schema), compile_row_decoder(store.value_schema)

        def decoded(partition: int, content: frozenset[tuple[bytes, bytes]]) -> list[OracleRow]:
            return [OracleRow(partition, key(stored[prefix:]), value(row[prefix:])) for stored, row in content]

        return {place: [decoded(place[0], content) for content in each] for place, each in self.seen.shown.items()}

    def end(self) -> None:
        self._ended.set()
        self._thread.join(30)

    def _published(self) -> None:
        self._note_views()
        self._wake_readers()

    def _note_views(self) -> None:
        generation = self.served.node.generation
        for replica in () if generation is None else generation.replicas:
            view = replica.view
            with self._noting:
                if view is None or self._noted.get(replica.task.partition) is view:
                    continue
                self._noted[replica.task.partition] = view
                content = frozenset(view.stores["default"].scan())
                self.seen.shown.setdefault((replica.task.partition, view.version), set()).add(content)

    def _sample(self) -> None:
        try:
            while not self._ended.wait(0.002):
                self._note_views()
                self._last_answers()
        except BaseException as error:  # reported by `wait_for_version` and `following`: a thread cannot fail a test
            self.failure = error

    def _last_answers(self) -> list[Answered]:
        reply = self.served.post(f"/v1/stores/{STORE}/lookup", self._body)
        if reply.status != 200:
            assert reply.problem == "not-initialised", reply
            return []
        results: Any = reply.body["results"]
        answered = [_answer(each) for each in results if each["status"] in (200, 404)]
        with self._noting:
            self.seen.answers.update(answered)
            self.seen.marks.update(
                (each["partition"], each["version"], mark) for each in results for mark in each.get("marks", ())
            )
        return answered


@contextmanager
def following(checkpoint: Path, data_dir: Path, keys: Sequence[str]) -> Iterator[Follower]:
    """Follow a checkpoint that has a commit, until the block ends."""
    files = ReadFiles(checkpoint)
    with served_node(checkpoint, data_dir, files=files) as served:
        follower = Follower(served, files, keys)
        try:
            yield follower
        finally:
            follower.end()
        assert follower.failure is None, repr(follower.failure)


def _answer(result: dict[str, Any]) -> Answered:
    value = json.dumps(list(result["value"].values())) if result["found"] else None
    (key,) = result["key"].values()
    return Answered(key, result["partition"], result["version"], value)
