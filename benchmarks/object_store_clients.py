"""Compares libraries that speak S3: obstore and s3fs, by what a node does. Decision 0036 has the numbers.

`python -m benchmarks.object_store_clients ENDPOINT BUCKET` asks a server that runs already, with `AWS_ACCESS_KEY_ID`
and `AWS_SECRET_ACCESS_KEY` in the environment. Each library runs in a process of its own, in turns, three times; it
prints the medians. Both must be installed; only obstore is a dependency of the project.
"""

from __future__ import annotations

import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

SMALL_BYTES, LARGE_BYTES = 2_000, 8 << 20
REQUESTS = 100
THREADS = 8
ROUNDS = 3
LIBRARIES = ("obstore", "s3fs")


def _with_obstore(endpoint: str, bucket: str) -> tuple[Callable[[str], object], Callable[[str], bytes]]:
    import obstore
    from obstore.store import S3Store

    store = S3Store(bucket, endpoint=endpoint, region="us-east-1", client_options={"allow_http": True})
    return lambda path: obstore.head(store, path), lambda path: bytes(obstore.get(store, path).bytes())


def _with_s3fs(endpoint: str, bucket: str) -> tuple[Callable[[str], object], Callable[[str], bytes]]:
    s3fs: Any = importlib.import_module("s3fs")  # no dependency of the project: install it to compare
    options = {"region_name": "us-east-1"}
    system: Any = s3fs.S3FileSystem(endpoint_url=endpoint, use_listings_cache=False, client_kwargs=options)
    return lambda path: system.info(f"{bucket}/{path}"), lambda path: bytes(system.cat_file(f"{bucket}/{path}"))


def _measure(library: str, endpoint: str, bucket: str) -> dict[str, float]:
    began, cpu = time.perf_counter(), time.process_time()
    head, get = {"obstore": _with_obstore, "s3fs": _with_s3fs}[library](endpoint, bucket)
    head("small")
    found = {"start_ms": (time.perf_counter() - began) * 1e3, "start_cpu_ms": (time.process_time() - cpu) * 1e3}
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("head", partial(head, "small")),
        ("get_2kB", partial(get, "small")),
    )
    for name, call in calls:
        took: list[float] = []
        cpu = time.process_time()
        for _ in range(REQUESTS):
            began = time.perf_counter()
            call()
            took.append(time.perf_counter() - began)
        found[f"{name}_p50_ms"] = statistics.median(took) * 1e3
        found[f"{name}_cpu_ms"] = (time.process_time() - cpu) / REQUESTS * 1e3
    with ThreadPoolExecutor(THREADS) as pool:
        began, cpu = time.perf_counter(), time.process_time()
        list(pool.map(head, ["small"] * REQUESTS))
        found["head_8_threads_per_s"] = REQUESTS / (time.perf_counter() - began)
        found["head_8_threads_cpu_ms"] = (time.process_time() - cpu) / REQUESTS * 1e3
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(5):
        assert len(get("large")) == LARGE_BYTES
    found["get_8MiB_ms"] = (time.perf_counter() - began) / 5 * 1e3
    found["get_8MiB_cpu_ms"] = (time.process_time() - cpu) / 5 * 1e3
    found["resident_MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return found


def _fill(endpoint: str, bucket: str) -> None:
    import obstore
    from obstore.store import S3Store

    store = S3Store(bucket, endpoint=endpoint, region="us-east-1", client_options={"allow_http": True})
    obstore.put(store, "small", b"x" * SMALL_BYTES)
    obstore.put(store, "large", b"x" * LARGE_BYTES)


def main() -> None:
    """Print a table of medians, or one library's numbers as JSON in a child."""
    endpoint, bucket, *only = sys.argv[1:]
    if only:
        print(json.dumps(_measure(only[0], endpoint, bucket)))
        return
    _fill(endpoint, bucket)
    rounds: dict[str, list[dict[str, float]]] = {library: [] for library in LIBRARIES}
    for _ in range(ROUNDS):
        for library in LIBRARIES:
            command = [sys.executable, str(Path(__file__)), endpoint, bucket, library]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
            rounds[library].append(json.loads(done.stdout))
    print(f"{'':24}" + "".join(f"{library:>12}" for library in LIBRARIES))
    for name in rounds[LIBRARIES[0]][0]:
        medians = (statistics.median(each[name] for each in rounds[library]) for library in LIBRARIES)
        print(f"{name:24}" + "".join(f"{median:12.2f}" for median in medians))


if __name__ == "__main__":
    main()
