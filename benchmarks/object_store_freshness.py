"""From a commit to the first routed answer that shows it, with the checkpoint on local disk and in each kind of object
store, in one run.

    python -m benchmarks.object_store_freshness [--commits 25] [--stores s3 azure gcs] ...

A real Spark query commits about once a second to a local disk. For each store in turn a node follows a copy there, to
which each batch is copied as it comes, its commit last, and a router is asked. A delay counts from the commit's
appearance in its own place. Servers are on this machine and answer within milliseconds: add four round trips of a real
store.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
from tests.support.object_store.bucket import Bucket
from tests.support.object_store.hdfs_server import Door

from benchmarks.object_store_servers import STORES, named, store_server
from benchmarks.servers import CLUSTER_NODE, ROUTER, Server, fetch, server
from understudy.demo.local_redis import local_redis

LOOK_S = 0.001
START_LIMIT_S = 120.0
FIRST_BATCHES = 3
AT_ONCE = 32
"""Files that are copied to HDFS at once: the close of one takes a quarter of a second."""

KEY = "/v1/stores/op0/keys/customer-001"


def main() -> None:
    """Print both percentiles for each place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=25)
    parser.add_argument("--stores", nargs="*", choices=STORES, default=["s3", "azure", "gcs"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        folder = Path(name)
        checkpoint = folder / "orders"
        query = subprocess.Popen(
            [sys.executable, "docs/examples/orders.py", str(checkpoint)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for_commit(checkpoint, FIRST_BATCHES, query)
            with _routed(str(checkpoint), folder / "local") as local:
                _print("local disk", [_delay_ms(local.port, batch) for batch in _commits(checkpoint, query, options)])
            for kind in options.stores:
                _print(named(kind), _delays_in_store(kind, checkpoint, folder / kind, query, options))
        finally:
            query.terminate()
            query.wait(60)


def _delays_in_store(
    kind: str, checkpoint: Path, folder: Path, query: subprocess.Popen[bytes], options: argparse.Namespace
) -> list[float]:
    folder.mkdir()
    with store_server(kind, folder) as store:
        bucket = store.new_bucket()
        mirror = _Mirror(checkpoint, bucket, AT_ONCE if isinstance(store, Door) else 1)
        mirror.copy(_newest(checkpoint))
        if not isinstance(store, Door):
            os.environ.update(store.environment())
        delays_ms = []
        with _routed(store.url(bucket.name, "orders"), folder / "data") as routed:
            for batch in _commits(checkpoint, query, options):
                mirror.copy(batch)
                delays_ms.append(_delay_ms(routed.port, batch))
        return delays_ms


def _commits(checkpoint: Path, query: subprocess.Popen[bytes], options: argparse.Namespace) -> Iterator[int]:
    """Yield each batch as it is committed."""
    first = _newest(checkpoint) + 1
    for batch in range(first, first + options.commits):
        _wait_for_commit(checkpoint, batch, query)
        yield batch


def _newest(checkpoint: Path) -> int:
    return max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())


def _print(place: str, delays_ms: list[float]) -> None:
    found = sorted(delays_ms)
    middle, tail = found[len(found) // 2], found[int(len(found) * 0.99)]
    print(f"  commit to answer, {place}, {len(found)} commits: p50 {middle:.1f} ms, p99 {tail:.1f} ms", flush=True)


@contextmanager
def _routed(checkpoint: str, data: Path) -> Iterator[Server]:
    """Start a router that answers by a node of its own."""
    with (
        local_redis() as bus,
        server(CLUSTER_NODE, checkpoint, str(data), bus.url, ready_path="/readyz"),
        server(ROUTER, bus.url, ready_path="/readyz") as router,
    ):
        limit_s = time.monotonic() + START_LIMIT_S
        while fetch(router.port, KEY)[0] != 200:
            if time.monotonic() > limit_s:
                raise RuntimeError(f"the router gave no answer for {KEY}: {fetch(router.port, KEY)}")
            time.sleep(LOOK_S)
        yield router


class _Mirror:
    """Copies what is new of a checkpoint to a bucket, so many files at once; a batch's commit comes last."""

    def __init__(self, checkpoint: Path, bucket: Bucket, at_once: int) -> None:
        self._at_once = at_once
        self._checkpoint = checkpoint
        self._bucket = bucket
        self._sent: set[Path] = set()

    def copy(self, batch: int) -> None:
        """Copy all files that are there now, and the commits up to `batch`."""
        commits = self._checkpoint / "commits"
        names = [path for path in self._checkpoint.rglob("*") if path.is_file() and not path.name.startswith(".")]
        state = [path for path in names if path.parent != commits]
        committed = sorted((path for path in names if path.parent == commits), key=lambda path: int(path.name))
        with ThreadPoolExecutor(self._at_once) as pool:
            list(pool.map(self._put, state))
        for path in committed:
            if int(path.name) <= batch:
                self._put(path)

    def _put(self, path: Path) -> None:
        if path not in self._sent:
            with suppress(FileNotFoundError):  # Spark's clean-up
                self._bucket.put(f"orders/{path.relative_to(self._checkpoint)}", path.read_bytes())
                self._sent.add(path)


def _delay_ms(port: int, batch: int) -> float:
    """Return the time from now to the first answer of the version that the batch made."""
    began = time.perf_counter()
    while orjson.loads(fetch(port, KEY)[1])["version"] <= batch:
        time.sleep(LOOK_S)
    return (time.perf_counter() - began) * 1000


def _wait_for_commit(checkpoint: Path, batch: int, query: subprocess.Popen[bytes]) -> None:
    limit_s = time.monotonic() + START_LIMIT_S
    while not (checkpoint / "commits" / str(batch)).exists():
        if query.poll() is not None or time.monotonic() > limit_s:
            raise RuntimeError(f"the query committed no batch {batch}")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
