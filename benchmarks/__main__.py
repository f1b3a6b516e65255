"""`make bench`: every benchmark in one run, with the machine's description. docs/benchmarks.md records it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

BENCHMARKS = {
    "codec: keys, hashes and values": ["benchmarks.codec"],
    "engines: overlay against a writable RocksDB": ["benchmarks.engines"],
    "restore and lookups, 1,000,000 keys": ["benchmarks.restore_and_lookup", "--keys", "1000000"],
    "restore and lookups, 10,000,000 keys": [
        "benchmarks.restore_and_lookup", "--keys", "10000000", "--provider", "RocksDB",
    ],
    "routed lookups: one router, one node": ["benchmarks.routed"],
    "freshness: from commit to answer": ["benchmarks.freshness"],
    "following: CPU per commit and task": ["benchmarks.following"],
    "attacks: hostile connections, and what the limits cost": ["benchmarks.attacks"],
    "the aligned source: throughput, latency, order": ["benchmarks.aligned"],
}  # fmt: skip


def main() -> int:
    print(
        f"{platform.platform()}, {_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True
    )
    failed = 0
    for title, (module, *arguments) in BENCHMARKS.items():
        print(f"\n== {title}", flush=True)
        failed |= subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
    return failed


def _processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return names[0] if names else "unknown processor"


if __name__ == "__main__":
    sys.exit(main())
