"""The two replica engines that were candidates, side by side on one RocksDB snapshot (docs/decisions/0002).

(a) `StateView`: a read-only base under dicts of changes, the engine that was built.
(b) `WritableEngine`, below: a private writable RocksDB over hard links to the same tables, WAL off, one write batch and
    stored version per task version, a snapshot per published version, automatic compaction off.

Each runs in a process of its own, so that memory and pauses are its own. "held" is the longest time that no other
Python thread could run, seen by one that tries every 0.2 ms.

    python -m benchmarks.engines [--keys 300000] [--changes 100000] [--arena-keys 1000000]
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Env, Options, Rdict, WriteBatch, WriteOptions
from tests.support.checkpoint.engine_stores import built_arena

from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.rocksdb_base import BlockCache, RocksBase
from understudy_node.engine.view import Spill, StateView, release_tiers, write_spill

Changes = dict[bytes, bytes | None]
VALUE_BYTES = 56
READS = 20_000
SMALL_VERSIONS = 50
SMALL_CHANGES = 1_000
LISTS = 10_000
VERSION_KEY = b"\xff\xffversion"


class Engine(Protocol):
    def get(self, key: bytes) -> bytes | None: ...
    def apply(self, changes: Changes) -> None: ...
    def delete_range(self, start: bytes, end: bytes) -> None: ...
    def pin(self) -> Callable[[], Iterator[tuple[bytes, bytes]]]: ...
    def free_memory(self) -> None: ...
    def recovered_version(self) -> int: ...


class OverlayEngine:
    """(a), driven as a replica drives it."""

    def __init__(self, directory: Path) -> None:
        self._cache = BlockCache()
        self._spill = directory.with_suffix(".spill")
        base = RocksBase.open(directory, cache=self._cache, expected_keys=None)
        self.view = StateView.of(base, 0)
        if (self._spill / "versions.json").exists():
            spill = Spill.open(self._spill, cache=self._cache)
            self.view = StateView(base, version=spill.last_version, base_version=0, spill=spill)

    def get(self, key: bytes) -> bytes | None:
        return self.view.get(key)

    def apply(self, changes: Changes) -> None:
        self.view = self.view.with_changes(changes, self.view.version + 1)

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.apply({key: None for key, _ in self.view.scan(start, end)})

    def pin(self) -> Callable[[], Iterator[tuple[bytes, bytes]]]:
        return self.view.scan

    def free_memory(self) -> None:
        for _ in write_spill(self.view.tiers, self._spill, below=self.view.spill):
            pass
        replaced = list(self.view.tiers)
        self.view = self.view.with_spill(Spill.open(self._spill, cache=self._cache))
        for _ in release_tiers(replaced):
            pass

    def recovered_version(self) -> int:
        return self.view.version


class WritableEngine:
    """(b). Published reads go through a RocksDB snapshot, so that a version appears at once and whole."""

    def __init__(self, directory: Path) -> None:
        options, families = Options.load_latest(str(directory), Env(), True, Cache(10 * 1024 * 1024))
        for each in (options, *families.values()):
            each.set_disable_auto_compactions(True)
        self._database = Rdict(str(directory), options, families)
        self._unlogged = WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # a property in fact
        self._version = struct.unpack("<q", self._database.get(VERSION_KEY) or bytes(8))[0]
        self._published = self._database.snapshot()

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._published[key]  # type: ignore[no-any-return]
        except KeyError:
            return None

    def apply(self, changes: Changes) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._publish(batch)

    def delete_range(self, start: bytes, end: bytes) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(start, end)
        self._publish(batch)

    def _publish(self, batch: WriteBatch) -> None:
        self._version += 1
        batch.put(VERSION_KEY, struct.pack("<q", self._version))
        self._database.write(batch, self._unlogged)
        self._published = self._database.snapshot()

    def pin(self) -> Callable[[], Iterator[tuple[bytes, bytes]]]:
        snapshot = self._published
        return lambda: (record for record in snapshot.items() if record[0] != VERSION_KEY)  # type: ignore[misc]

    def free_memory(self) -> None:
        self._database.flush()

    def recovered_version(self) -> int:
        return int(self._version)


ENGINES: dict[str, Callable[[Path], Engine]] = {"a": OverlayEngine, "b": WritableEngine}


def key_of(number: int) -> bytes:
    """Return 32 bytes, in no order, like rows of Spark's: a byte 0, then content."""
    return b"\0" + hashlib.blake2b(struct.pack("<q", number), digest_size=31).digest()


def changes_of(first: int, count: int, mark: bytes) -> Changes:
    return {key_of(number): mark * VALUE_BYTES for number in range(first, first + count)}


def build_base(directory: Path, keys: int) -> None:
    table = BlockBasedOptions()
    table.set_bloom_filter(10, block_based=False)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    database = Rdict(str(directory), options)
    for first in range(0, keys, 10_000):
        batch = WriteBatch(raw_mode=True)
        for number in range(first, min(keys, first + 10_000)):
            batch.put(key_of(number), struct.pack("<q", number) * (VALUE_BYTES // 8))
        database.write(batch)
    database.flush()
    database.compact_range(None, None)
    database.close()


def link_base(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in source.iterdir():
        if path.suffix == ".sst":
            os.link(path, target / path.name)
        elif path.name != "LOCK":
            shutil.copyfile(path, target / path.name)


class Held:
    """The longest time in which a thread that only sleeps was not let in: the GIL was held."""

    def __enter__(self) -> Held:
        self.longest_ms = 0.0
        self._on = True
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()
        time.sleep(0.02)
        self.longest_ms = 0.0
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.took_ms = (time.perf_counter() - self._began) * 1e3
        self._on = False
        self._thread.join()

    def _tick(self) -> None:
        last = time.perf_counter()
        while self._on:
            time.sleep(0.0002)
            now = time.perf_counter()
            self.longest_ms = max(self.longest_ms, (now - last) * 1e3)
            last = now


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def read_us(engine: Engine, keys: list[bytes]) -> float:
    began = time.perf_counter()
    for key in keys:
        engine.get(key)
    return (time.perf_counter() - began) / len(keys) * 1e6


def worst_read_ms(engine: Engine, keys: list[bytes], act: Callable[[], None]) -> float:
    """Return the longest wait for the next answer of a thread that reads all the time while `act` runs."""
    worst, on = 0.0, True

    def read() -> None:
        nonlocal worst
        answered = time.perf_counter()
        while on:
            for key in keys[:64]:
                engine.get(key)
                now = time.perf_counter()
                answered, worst = now, max(worst, (now - answered) * 1e3)

    reader = threading.Thread(target=read)
    reader.start()
    act()
    on = False
    reader.join()
    return worst


def measure(name: str, base: Path, work: Path, sizes: tuple[int, int], results: Any) -> None:
    keys, changes = sizes
    sys.setswitchinterval(0.0005)  # so that only C calls count as held, not the interpreter's own turns
    sample = random.Random(7)
    known = [key_of(sample.randrange(keys)) for _ in range(READS)]
    small = [changes_of(round_ * SMALL_CHANGES, SMALL_CHANGES, b"s") for round_ in range(SMALL_VERSIONS)]
    before_mb, row = resident_mb(), {}
    with Held() as held:
        link_base(base, work)
        engine = ENGINES[name](work)
        engine.get(known[0])
    row["restore: link, open, first get (ms)"], row["  held (ms)"] = held.took_ms, held.longest_ms
    read_us(engine, known)
    row["get from the snapshot (us)"] = read_us(engine, known)
    with Held() as held:
        for version in small:
            engine.apply(version)
    row[f"apply {SMALL_CHANGES} changes (ms)"] = held.took_ms / SMALL_VERSIONS
    row["  held, worst (ms)"] = held.longest_ms
    row[f"get after {SMALL_VERSIONS} versions (us)"] = read_us(engine, known)
    large = changes_of(keys - changes // 2, changes, b"l")
    with Held() as held:
        engine.apply(large)
    large = changes_of(keys, changes, b"m")
    row[f"apply {changes} changes (ms)"], row["  held, one version (ms)"] = held.took_ms, held.longest_ms
    row["slowest read during such an apply (ms)"] = worst_read_ms(engine, known, partial(engine.apply, large))
    del large
    row["get after that (us)"] = read_us(engine, known)
    row["resident memory taken (MB)"] = resident_mb() - before_mb
    with Held() as held:
        engine.free_memory()
    row["changes out of memory: spill, flush (ms)"], row["  held, spill (ms)"] = held.took_ms, held.longest_ms
    row["get with them on disk (us)"] = read_us(engine, known)
    began = time.perf_counter()
    engine.apply({key: (engine.get(key) or b"") + b",appended" for key in known[:LISTS]})
    row[f"append to {LISTS} lists, read and write (ms)"] = (time.perf_counter() - began) * 1e3
    first, last = sorted(known)[READS // 2 : READS // 2 + READS // 20 : READS // 20 - 1]
    pinned = engine.pin()
    expected = sum(1 for _ in pinned())
    began = time.perf_counter()
    engine.delete_range(first, last)
    row["delete a range, 5 % of all (ms)"] = (time.perf_counter() - began) * 1e3
    began = time.perf_counter()
    seen = sum(1 for _ in pinned())
    row["scan (million records/s)"] = seen / (time.perf_counter() - began) / 1e6
    row["records a scan of the pinned version lost"] = expected - seen
    content = hashlib.blake2b(digest_size=16)
    for key, value in engine.pin()():
        content.update(key + value)
    results.put((row, engine.recovered_version(), content.digest()))
    results.close()
    results.join_thread()
    os.kill(os.getpid(), 9)


def measure_restart(name: str, work: Path, results: Any) -> None:
    began = time.perf_counter()
    engine = ENGINES[name](work)
    engine.get(key_of(1))
    results.put(((time.perf_counter() - began) * 1e3, engine.recovered_version()))


def compare(keys: int, changes: int, root: Path) -> dict[str, dict[str, float]]:
    base = root / "base"
    build_base(base, keys)
    start, table = multiprocessing.get_context("spawn"), {}
    contents = set()
    for name in ENGINES:
        results = start.Queue()
        child = start.Process(target=measure, args=(name, base, root / f"engine-{name}", (keys, changes), results))
        child.start()
        row, version, content = results.get(timeout=600)
        contents.add(content)
        child.join()
        again = start.Process(target=measure_restart, args=(name, root / f"engine-{name}", results))
        again.start()
        row["restart after kill -9 (ms)"], recovered = results.get(timeout=60)
        again.join()
        row["versions to read again after it"] = version - recovered
        table[name] = row
    assert len(contents) == 1, "the engines do not hold the same state"
    return table


def compare_arena(keys: int, root: Path) -> dict[str, dict[str, float]]:
    """Measure the base for the HDFS-backed provider, against decoding the snapshot into a dict."""
    records = bytearray()
    for number in range(keys):
        records += struct.pack(">i32si56s", 32, key_of(number), 56, bytes(56))
    snapshot = bytes(records + struct.pack(">i", -1))
    sought = [key_of(random.randrange(keys)) for _ in range(READS)]
    before_mb, began = resident_mb(), time.perf_counter()
    arena = built_arena(root / "arena", [snapshot])
    arena.get(sought[0])
    row_a = {"build to first get (ms)": (time.perf_counter() - began) * 1e3}
    row_a["get (us)"] = read_us(arena, sought)  # type: ignore[arg-type]  # only `get` is called
    row_a["bytes per key"] = arena.resident_bytes / keys
    began = time.perf_counter()
    ArenaBase.open(root / "arena").get(sought[0])
    row_a["restart (ms)"] = (time.perf_counter() - began) * 1e3
    before_mb, began = resident_mb(), time.perf_counter()
    decoded = {}
    for at in range(0, len(snapshot) - 4, 96):
        decoded[snapshot[at + 4 : at + 36]] = snapshot[at + 40 : at + 96]
    row_b = {"build to first get (ms)": (time.perf_counter() - began) * 1e3}
    row_b["get (us)"] = read_us(decoded, sought)  # type: ignore[arg-type]
    row_b["bytes per key"] = (resident_mb() - before_mb) * 1e6 / keys
    row_b["restart (ms)"] = row_b["build to first get (ms)"]
    return {"arena": row_a, "dict": row_b}


def print_table(title: str, table: dict[str, dict[str, float]]) -> None:
    (left, left_row), (right, right_row) = table.items()
    print(f"\n{title}\n{'':44}{left:>12}{right:>12}{right + '/' + left:>12}")
    for what, value in left_row.items():
        other = right_row[what]
        ratio = f"{other / value:12.2f}" if value > 0 else f"{'-':>12}"
        print(f"{what:44}{value:12.2f}{other:12.2f}{ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=300_000)
    parser.add_argument("--changes", type=int, default=100_000, help="records of the large version")
    parser.add_argument("--arena-keys", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, help="where to work (default: a temporary directory)")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=flags.directory) as root:
        print_table(f"RocksDB snapshot of {flags.keys:,} keys", compare(flags.keys, flags.changes, Path(root)))
        print_table(f"HDFS snapshot of {flags.arena_keys:,} keys", compare_arena(flags.arena_keys, Path(root)))


if __name__ == "__main__":
    main()
