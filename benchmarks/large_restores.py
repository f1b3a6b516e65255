"""Lookups while another partition of the same node is restored: p99 against that of the same load without a restore.

    python -m benchmarks.large_restores CHECKPOINT NODE_PORT RESTORES

is the other process: it commits versions of which partition 0 has a snapshot and no changelog, as after Spark's
clean-up, waits until the node shows each, and prints when it did.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.big_checkpoint import PARTITIONS, BigCheckpoint
from benchmarks.load import get, timed_load
from benchmarks.servers import Server, fetch
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, StringType, StructType

RESTORES = 5
RESTORED_PARTITION = 0
ASKED_KEYS = 1_000
QUIET_S = 1.5
LIMIT_S = 300.0
GOAL = 3.0


def measure(checkpoint: BigCheckpoint, node: Server) -> tuple[float, float, float]:
    """Return p99 of lookups in other partitions without and during restores, in ms, and the mean time of a restore in
    ms.
    """
    codec = KeyCodec(StructType((Field("key", StringType()),)))
    numbers = (number for number in range(checkpoint.keys) if _is_elsewhere(codec, checkpoint.key(number)))
    requests = [get(f"/v1/stores/op0/keys/{checkpoint.key(next(numbers))}") for _ in range(ASKED_KEYS)]
    timed_load(node.port, requests, seconds=1.0)
    command = [sys.executable, "-m", "benchmarks.large_restores", str(checkpoint.path), str(node.port), str(RESTORES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as restores:
        samples = []
        while restores.poll() is None:
            samples += timed_load(node.port, requests, seconds=2.0)
        assert restores.returncode == 0, "the restores failed"
        assert restores.stdout is not None
        windows = [tuple(map(float, window)) for window in json.loads(restores.stdout.read())]
    during: list[float] = []
    quiet: list[float] = []
    for ended_s, latency_s in samples:
        began_s = ended_s - latency_s
        restored = any(began_s < end and ended_s > start for start, end in windows)
        (during if restored else quiet).append(latency_s)
    took_s = sum(end - start for start, end in windows) / len(windows)
    return _p99_ms(quiet), _p99_ms(during), took_s * 1000


def _is_elsewhere(codec: KeyCodec, key: str) -> bool:
    return codec.partition((key,), PARTITIONS) != RESTORED_PARTITION


def _p99_ms(latencies_s: list[float]) -> float:
    return sorted(latencies_s)[int(len(latencies_s) * 0.99)] * 1000


def main() -> None:
    path, port, restores = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    windows = []
    for _ in range(restores):
        time.sleep(QUIET_S)
        version = _last_batch(path) + 2
        _write_version(path, version)
        began_s = time.perf_counter()
        _commit(path, version)
        _wait_for(port, version, began_s + LIMIT_S)
        windows.append((began_s, time.perf_counter()))
    time.sleep(QUIET_S)
    print(json.dumps(windows))


def _last_batch(path: Path) -> int:
    return max(int(each.name) for each in (path / "commits").iterdir() if each.name.isdecimal())


def _write_version(path: Path, version: int) -> None:
    """Write the state of the last version again. The new names are links: nothing is written while the load is
    measured.
    """
    for partition in range(PARTITIONS):
        directory = path / f"state/0/{partition}"
        if partition == RESTORED_PARTITION:
            newest = max(directory.glob("*.snapshot"), key=lambda each: int(each.stem))
            os.link(newest, directory / f"{version}.snapshot")
        else:
            os.link(directory / f"{version - 1}.delta", directory / f"{version}.delta")
    _copy(path / f"offsets/{version - 2}", path / f"offsets/{version - 1}")


def _commit(path: Path, version: int) -> None:
    _copy(path / f"commits/{version - 2}", path / f"commits/{version - 1}")


def _copy(source: Path, target: Path) -> None:
    draft = target.with_name(f".{target.name}.draft")
    draft.write_bytes(source.read_bytes())
    draft.replace(target)


def _wait_for(port: int, version: int, limit_s: float) -> None:
    """Return when the node shows the version of the restored partition."""
    while time.perf_counter() < limit_s:
        partitions = json.loads(fetch(port, "/admin/v1/lag")[1])["stores"][0]["partitions"]
        shown = {each["partition"]: each["current_offset_position"] for each in partitions}
        if shown.get(RESTORED_PARTITION) == version:
            return
        time.sleep(0.01)
    raise RuntimeError(f"version {version} was not shown in {LIMIT_S} s")


if __name__ == "__main__":
    main()
