"""From the appearance of a commit to the first answer that shows it: percentiles over a running query's commits.

    python -m benchmarks.freshness [--commits 60]

A real Spark query commits about once a second; a node serves it in another process; this one looks for each commit
file every millisecond and then asks the node for a key until the answer has the new version.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson

from benchmarks.servers import NODE, fetch, server

LOOK_S = 0.001
START_LIMIT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        checkpoint = Path(folder) / "orders"
        query = subprocess.Popen(
            [sys.executable, "docs/examples/orders.py", str(checkpoint)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for_commit(checkpoint, 2, query)
            with server(NODE, str(checkpoint), str(Path(folder) / "data"), ready_path="/readyz") as node:
                delays_ms = sorted(_delays_ms(checkpoint, node.port, options.commits, query))
        finally:
            query.terminate()
            query.wait(60)
    middle, tail = delays_ms[len(delays_ms) // 2], delays_ms[int(len(delays_ms) * 0.99)]
    print(f"  commit file to answer, {len(delays_ms)} commits: p50 {middle:.1f} ms, p99 {tail:.1f} ms (goals 20, 100)")


def _delays_ms(checkpoint: Path, port: int, commits: int, query: subprocess.Popen[bytes]) -> list[float]:
    delays_ms = []
    batch = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for number in range(batch + 1, batch + 1 + commits):
        _wait_for_commit(checkpoint, number, query)
        seen_s = time.perf_counter()
        while orjson.loads(fetch(port, "/v1/stores/op0/keys/customer-001")[1])["version"] <= number:
            time.sleep(LOOK_S)
        delays_ms.append((time.perf_counter() - seen_s) * 1000)
    return delays_ms


def _wait_for_commit(checkpoint: Path, batch: int, query: subprocess.Popen[bytes]) -> None:
    limit_s = time.monotonic() + START_LIMIT_S
    while not (checkpoint / "commits" / str(batch)).exists():
        if query.poll() is not None or time.monotonic() > limit_s:
            raise RuntimeError(f"the query committed no batch {batch}")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
