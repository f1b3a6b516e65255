"""`make bench`: every benchmark in one run, with the machine's description. docs/benchmarks.md records it."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.report import machine

BENCHMARKS = {
    "codec: keys, hashes and values": ["benchmarks.codec"],
    "engines: overlay against a writable RocksDB": ["benchmarks.engines"],
    "restore and lookups, 1,000,000 keys": ["benchmarks.restore_and_lookup", "--keys", "1000000"],
    "restore and lookups, 10,000,000 keys": [
        "benchmarks.restore_and_lookup", "--keys", "10000000", "--provider", "RocksDB",
    ],
    "lookups: node and router, beside a constant application and peers": ["benchmarks.lookups"],
    "batches of 100: node and router, beside FastAPI with MGET": ["benchmarks.batches"],
    "routed lookups: one router, one node": ["benchmarks.routed"],
    "processes: routers and nodes of one process and of two": ["benchmarks.processes"],
    "freshness: from commit to answer": ["benchmarks.freshness"],
    "lookup parts: where the CPU of a lookup goes": ["benchmarks.lookup_parts"],
    "following: CPU per commit and task": ["benchmarks.following"],
    "attacks: hostile connections, and what the limits cost": ["benchmarks.attacks"],
    "the aligned source: throughput, latency, order": ["benchmarks.aligned"],
}  # fmt: skip


def main() -> int:
    print("{platform}, {processor}, {cores} cores, Python {python}".format(**machine()), flush=True)
    failed = 0
    for title, (module, *arguments) in BENCHMARKS.items():
        print(f"\n== {title}", flush=True)
        failed |= subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
