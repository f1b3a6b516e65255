"""Queries made by hand for `benchmarks.fleet`, and the process that commits for all of them until its input ends.

That process is `python -m benchmarks.fleet_queries FOLDER REDIS SECONDS NAME...`.
"""

from __future__ import annotations

import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path
from subprocess import PIPE, Popen

import orjson
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from benchmarks.servers import fetch
from understudy_shared.bus.messages import Announcement
from understudy_shared.bus.redis_sync import SyncPublisher

PARTITIONS = 4
ASKED = WORDS[:12]
"""The keys of each query that are checked: they lie in all of its partitions."""

LIMIT_S = 120.0


class Query:
    """A query of 40 words and a few more, whose every answer follows from its version."""

    def __init__(self, folder: Path, name: str, redis_url: str) -> None:
        self.name = name
        self.checkpoint = folder / name
        self._made = HandmadeCheckpoint(self.checkpoint, partitions=PARTITIONS)
        self._redis_url = redis_url

    @property
    def version(self) -> int:
        """The last version that was committed, by whichever process."""
        return sum(path.name.isdigit() for path in (self.checkpoint / "commits").iterdir())

    def create(self) -> Query:
        """Write the checkpoint with its first commit."""
        self._made.create().add(1)
        return self

    def commit(self, publisher: SyncPublisher) -> None:
        """Commit the next version, and hint at it as the pipeline does."""
        version = self.version + 1
        self._made.add(version)
        publisher.hint(version)

    def announce(self) -> None:
        """Announce the query as its driver does at the start: a hint at the last commit, then the location."""
        with closing(self.publisher()) as publisher:
            publisher.hint(self.version)
            said = Announcement(application_id=self.name, query_id="q", stores=[], checkpoint=f"file:{self.checkpoint}")
            publisher.announce(said, if_absent=True)

    def publisher(self) -> SyncPublisher:
        return SyncPublisher(self._redis_url, self.name)

    def is_right(self, port: int, word: str = WORDS[0]) -> bool:
        """Whether a router answers a key as of the last version."""
        status, body = fetch(port, f"/v1/applications/{self.name}/stores/op0/keys/{word}")
        count = self.version
        return status == 200 and orjson.loads(body)["value"] == {"count": count, "total": count * 1_000_000}


def wait_for_answers(queries: Iterable[Query], ports: Iterable[int]) -> None:
    """Return when each router has answered the checked keys of each query as of its last version."""
    for query in queries:
        for port in ports:
            for word in ASKED:
                what = f"version {query.version} of {word} of {query.name} at port {port}"
                wait_until(lambda q=query, p=port, w=word: q.is_right(p, w), what=what, limit_s=LIMIT_S)  # type: ignore[misc]


@contextmanager
def commits(folder: Path, redis_url: str, every_s: float, queries: Sequence[Query]) -> Iterator[None]:
    """Have another process commit for each query every so many seconds, until the block ends."""
    names = [query.name for query in queries]
    command = [sys.executable, "-m", "benchmarks.fleet_queries", str(folder), redis_url, str(every_s), *names]
    before = [query.version for query in queries]
    with Popen(command, stdin=PIPE, stdout=sys.stderr) as writer:  # its input ends with the block, or with this process
        what = "the process that commits"
        wait_until(lambda: [each.version for each in queries] != before, what=what, limit_s=LIMIT_S)
        yield
    if writer.returncode != 0:
        raise RuntimeError(f"{what} ended with {writer.returncode}")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # its owner ends it
    folder, redis_url, every_s, *names = sys.argv[1:]
    queries = [Query(Path(folder), name, redis_url) for name in names]
    turns = cycle([(query, query.publisher()) for query in queries])
    due_s = time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, due_s - time.monotonic()))[0]:
        query, publisher = next(turns)
        query.commit(publisher)
        due_s += float(every_s) / len(names)


if __name__ == "__main__":
    main()
