"""`make bench`: every benchmark in one run, with the machine's description. docs/benchmarks.md records it.

    python -m benchmarks [--quick] [--only REGEX] [--report FOLDER]

Each benchmark is a process of its own. After each, FOLDER has the report of all that ended so far, report.json and
report.md, so that one that fails, or a run that is stopped, loses nothing. At the end: which goals were reached.
`--quick` takes small sizes: to see that everything runs, not for figures.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.goals import goals_table
from benchmarks.report import described, markdown, skips_in, stolen_s, write_document

BENCHMARKS = {
    "codec: keys, hashes and values": ["benchmarks.codec"],
    "engines: overlay against a writable RocksDB": ["benchmarks.engines"],
    "restore and lookups, 1,000,000 keys": ["benchmarks.restore_and_lookup", "--keys", "1000000"],
    "restore and lookups, 10,000,000 keys": ["benchmarks.restore_and_lookup", "--keys", "10000000"],
    "lookups: node and router, beside a constant application and peers": ["benchmarks.lookups"],
    "kinds of state: sessions, rows of a join and lists, beside a constant application": ["benchmarks.kinds"],
    "custom state: restoring 1,000,000 keys of transformWithState": ["benchmarks.custom_state"],
    "batches of 100: node and router, beside FastAPI with MGET": ["benchmarks.batches"],
    "exports: rows a second, and lookups beside them": ["benchmarks.exports"],
    "SQL: an aggregation beside Spark's, and one key": ["benchmarks.sql"],
    "clients: the Python client beside httpx, http.client, a bare socket and redis-py": ["benchmarks.clients"],
    "client weight: the time to import it, and its installed size": ["benchmarks.client_weight"],
    "routed lookups: one router, one node": ["benchmarks.routed"],
    "calls of a request: functions that a lookup and a page call at router and node": ["benchmarks.request_calls"],
    "freshness: from commit to answer": ["benchmarks.freshness"],
    "lookup parts: where the CPU of a lookup goes": ["benchmarks.lookup_parts"],
    "following: CPU per commit and task": ["benchmarks.following"],
    "leases: memory of old versions that are kept, and the time of a grant": ["benchmarks.leases"],
    "idle: CPU of a node and a router while nothing happens": ["benchmarks.idle"],
    "fleet: 40 queries in one cluster, beside clusters of one query": ["benchmarks.fleet"],
    "auth: what API keys, tokens and certificates cost a lookup": ["benchmarks.auth"],
    "attacks: hostile connections, and what the limits cost": ["benchmarks.attacks"],
    "scale: 1,000 nodes and 100,000 replicas": ["benchmarks.scale"],
    "admin: reports of 1,000 nodes and 100,000 replicas": ["benchmarks.admin"],
    "page: first paint and updates in a browser": ["benchmarks.page"],
    "the aligned source: throughput, latency, order": ["benchmarks.aligned"],
    "the aligned source: whole queries by size of record": ["benchmarks.aligned_whole"],
    "the aligned source: CPU by number of partitions": ["benchmarks.aligned_partitions"],
    "the aligned source: the first row of a new JVM": ["benchmarks.aligned_first"],
}  # fmt: skip

QUICK = {
    "benchmarks.restore_and_lookup": ["--keys", "20000", "--seconds", "1"],
    "benchmarks.lookups": ["--keys", "20000", "--rounds", "1", "--seconds", "1", "--warm-up", "1"],
    "benchmarks.kinds": ["--keys", "500", "--rounds", "1", "--seconds", "1", "--warm-up", "1"],
    "benchmarks.custom_state": ["--keys", "2000"],
    "benchmarks.batches": ["--keys", "20000", "--rounds", "1", "--seconds", "1"],
    "benchmarks.exports": ["--keys", "20000", "--rounds", "1", "--seconds", "1"],
    "benchmarks.sql": ["--keys", "20000", "--rounds", "1", "--points", "20"],
    "benchmarks.clients": ["--keys", "2000", "--calls", "200", "--rounds", "1"],
    "benchmarks.client_weight": ["--rounds", "2"],
    "benchmarks.routed": ["--keys", "20000", "--seconds", "1"],
    "benchmarks.request_calls": ["--keys", "2000", "--requests", "50"],
    "benchmarks.freshness": ["--commits", "5"],
    "benchmarks.lookup_parts": ["--keys", "20000", "--rounds", "1"],
    "benchmarks.following": ["--tasks", "8", "--commits", "5"],
    "benchmarks.leases": ["--keys", "2000", "--changes", "50", "--held", "1,3", "--grants", "20"],
    "benchmarks.idle": ["--tasks", "8", "--viewers", "0,5", "--seconds", "3", "--settle", "1"],
    "benchmarks.fleet": ["--queries", "3", "--clusters", "1", "--seconds", "3", "--settle", "3", "--later", "2"],
    "benchmarks.auth": ["--keys", "2000", "--rounds", "1", "--seconds", "0.3"],
    "benchmarks.attacks": ["--rounds", "1", "--seconds", "1"],
    "benchmarks.admin": ["--nodes", "50", "--replicas", "2000"],
    "benchmarks.scale": ["--nodes", "50", "--replicas", "2000", "--seconds", "5"],
    "benchmarks.aligned_whole": ["--records", "20000", "--sizes", "10", "--rounds", "1"],
    "benchmarks.aligned_first": ["--rounds", "1"],
    "benchmarks.aligned_partitions": ["--records", "4000", "--rounds", "1"],
    "benchmarks.page": ["--replicas", "24", "--updates", "2"],
}
"""Further arguments of small runs, by module; the last of two counts. A benchmark without any runs as always."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="a regular expression: run these")
    parser.add_argument("--report", type=Path, default=Path(".cache/bench"))
    options = parser.parse_args()
    options.report.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {**described(), "quick": options.quick, "parts": {}}
    print("{platform}, {processor}, {cores} cores, Python {python}".format(**report["machine"]), flush=True)
    chosen = {title: part for title, part in BENCHMARKS.items() if re.search(options.only, title)}
    for title, (module, *arguments) in chosen.items():
        print(f"\n== {title}", flush=True)
        further = QUICK.get(module, []) if options.quick else []
        report["parts"][title] = run(module, [*arguments, *further])
        write_both(options.report, report)
    print(f"\n== goals\n\n{goals_table(report)}\nThe report is in {options.report}", flush=True)
    return int(any(part["status"] != "done" for part in report["parts"].values()))


def run(module: str, arguments: list[str]) -> dict[str, Any]:
    """Run one benchmark; return its output, what it left out, and its rounds if it writes them."""
    began_s, (taken_s, all_s) = time.monotonic(), stolen_s()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(
            [*command, "--report", str(path)] if writes_report(module) else command,
            stdout=subprocess.PIPE,
            text=True,
        )
        printed = echoed(process)
        rounds = json.loads(path.read_text())["rounds"] if path.exists() else {}
    taken_later_s, all_later_s = stolen_s()
    return {
        "module": module,
        "arguments": arguments,
        "status": "done" if process.returncode == 0 else f"ended with {process.returncode}",
        "seconds": time.monotonic() - began_s,
        "stolen": (taken_later_s - taken_s) / max(all_later_s - all_s, 1e-9),
        "skipped": skips_in(printed),
        "rounds": rounds,
        "printed": printed,
    }


def echoed(process: subprocess.Popen[str]) -> str:
    """Return the output of a process, shown as it comes."""
    assert process.stdout is not None
    printed = []
    with process:
        for line in process.stdout:
            print(line, end="", flush=True)
            printed.append(line)
    return "".join(printed)


def writes_report(module: str) -> bool:
    """Whether a benchmark takes `--report FILE`."""
    source = Path(__file__).with_name(f"{module.partition('.')[2]}.py")
    return source.exists() and '"--report"' in source.read_text()


def write_both(folder: Path, report: dict[str, Any]) -> None:
    """Write the report for programs and for people, after each part."""
    write_document(folder / "report.json", report)
    (folder / "report.md").write_text(markdown(report, goals_table(report)))


if __name__ == "__main__":
    sys.exit(main())
