"""Requests of a look, a commit and a restore, and the time of a restore, for each kind of object store.

    python -m benchmarks.object_store_restores write FOLDER [--keys 1000000] [--provider RocksDB HDFSBacked]
    python -m benchmarks.object_store_restores measure FOLDER [--stores s3 azure gcs] ...

The first has real Spark write a checkpoint of each provider. The second copies it to each server in turn, restores it
by a node, and from local disk for comparison. The requests of another restore, of looks and of commits are counted by a
proxy, those of HDFS at its client: STAT and OPEN are requests to the NameNode, and an OPEN brings one to a DataNode.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.object_store.bucket import Bucket, StoreServer
from tests.support.object_store.counted_hdfs import count_requests
from tests.support.object_store.faulty_proxy import RequestLog, faulty_proxy
from tests.support.object_store.hdfs_server import Door
from tests.support.object_store.uploaded import Uploaded

from benchmarks.big_checkpoint import PARTITIONS, BigCheckpoint, session, write
from benchmarks.object_store_servers import STORES, named, store_server
from benchmarks.restore_and_lookup import restore_in_process
from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.object_store import ObjectStoreFiles
from understudy_node.follow.history import CommitHistory
from understudy_node.follow.poll_loop import Poller
from understudy_shared.base.clock import SystemClock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "measure"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--stores", nargs="*", choices=STORES, default=["s3", "azure", "gcs"])
    parser.add_argument("--provider", nargs="+", default=["RocksDB"])
    options = parser.parse_args()
    checkpoints = [BigCheckpoint(options.folder / provider, provider, options.keys) for provider in options.provider]
    if options.what == "write":
        spark = session(options.folder)
        for each in checkpoints:
            write(spark, each.path, provider=each.provider, keys=each.keys)
        spark.stop()
        return
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        folder = Path(name)
        for each in checkpoints:
            took_s = restore_in_process(each, folder / f"local-{each.provider}")
            print(f"  restore, {each.provider}, {each.keys:,} keys, local disk: {took_s * 1000:,.0f} ms", flush=True)
        for kind in options.stores:
            (folder / kind).mkdir()
            with store_server(kind, folder / kind) as store:
                _measure(named(kind), store, checkpoints, folder / kind)


def _measure(place: str, store: StoreServer | Door, checkpoints: list[BigCheckpoint], folder: Path) -> None:
    look, commit = _looks_and_commits(store, store.new_bucket(), folder / "small")
    print(f"  a look, {place}: {_text(look)}; a commit: {_text(commit)} more", flush=True)
    for checkpoint in checkpoints:
        bucket = store.new_bucket()
        bucket.put_folder(checkpoint.path, "ckpt")
        with _reader(store, bucket, is_counted=False) as (files, _):
            took_s = restore_in_process(checkpoint, folder / checkpoint.provider / "timed", files=files)
        print(
            f"  restore, {checkpoint.provider}, {checkpoint.keys:,} keys, {place}: {took_s * 1000:,.0f} ms", flush=True
        )
        with _reader(store, bucket) as (files, log):
            restore_in_process(checkpoint, folder / checkpoint.provider / "counted", files=files)
            of_state = log.kinds(of=lambda asked: "/state/" in f"/{asked.key}/")
            total = log.kinds()
        print(f"    {_text(total)}, of them {_text(of_state)} below state, for {PARTITIONS} tasks", flush=True)


def _looks_and_commits(store: StoreServer | Door, bucket: Bucket, folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Count a look that finds nothing, and what one commit adds, without the tasks."""
    uploaded = Uploaded(bucket, folder)
    uploaded.add(1, 2, 3)
    with _reader(store, bucket) as (files, log):
        poller = Poller(files, SystemClock())
        history = CommitHistory(files)
        poller.poll()
        log.forget()
        poller.poll()
        look = log.kinds()
        uploaded.add(4)
        log.forget()
        history.record(poller.poll().end.version)
        return look, log.kinds() - look


@contextmanager
def _reader(
    store: StoreServer | Door, bucket: Bucket, *, is_counted: bool = True
) -> Iterator[tuple[CheckpointFiles, RequestLog]]:
    """Open a reader of the checkpoint, and what it asks for; through a proxy where the store is asked by HTTP alone."""
    if isinstance(store, Door):
        found = store.files(bucket.name, "ckpt")
        yield found, count_requests(found) if is_counted else RequestLog()
        return
    with faulty_proxy(store.port, depth=store.depth) as proxy:
        endpoint = proxy.endpoint if is_counted else None
        yield ObjectStoreFiles(store.reader(bucket.name, "ckpt", endpoint)), proxy


def _text(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing"


if __name__ == "__main__":
    main()
