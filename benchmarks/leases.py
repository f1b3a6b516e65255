"""The cost of snapshot leases for a node: the memory of the versions that they keep, and the time of a grant.

    python -m benchmarks.leases [--keys 100000] [--changes 1000] [--held 1,10,50] [--grants 200] [--report FILE]

Each lease is of a version of its own, which is the costly case: those of a second share one. The query is that of
`benchmarks.following`, here of one task: a version has so many changes, of words that are spread over all of them.
After the last lease as many versions are committed again, so that no leased one is on show. `model` is what they may
hold: one overlay, and each change as often as tiers that merge by doubling can have it (decision 0063).
"""

from __future__ import annotations

import argparse
import http.client
import re
import statistics
import tempfile
import time
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson

from benchmarks.following import FormatV2, changed_words, wait_for
from benchmarks.report import write_report
from benchmarks.servers import NODE, Server, fetch, pin_load, server

STEP = 7919
"""A prime: a step from word to word that spreads the changes of a version."""

Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=1_000, help="of each version")
    parser.add_argument("--held", default="1,10,50", help="leases at a time, at most 63")
    parser.add_argument("--grants", type=int, default=200, help="that are timed beside them")
    parser.add_argument("--report", type=Path, help="write the figures to a file, for benchmarks.compare")
    options = parser.parse_args()
    pin_load()
    rounds: dict[str, list[Figures]] = {}
    for held in map(int, options.held.split(",")):
        with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
            query = FormatV2(Path(name) / "checkpoint", 1)
            commit(query, range(options.keys))
            with server(NODE, str(query.path), str(Path(name) / "data"), ready_path="/readyz") as node:
                found = measured(query, node, held, options)
        print(f"{held:3} leases  " + "  ".join(f"{what} {figure:,.2f}" for what, figure in found.items()), flush=True)
        rounds[f"{held} leases"] = [found]
    if options.report is not None:
        write_report(options.report, rounds)


def measured(query: FormatV2, node: Server, held: int, options: argparse.Namespace) -> Figures:
    """Measure a node that keeps so many versions, each by a lease."""
    one_change = gauge(node, "understudy_overlay_bytes") / options.keys
    tokens = []
    for _ in range(held):
        follow(query, node, options)
        tokens.append(lease(node, query.version))
    for _ in range(held):
        follow(query, node, options)
    overlay, extra = gauge(node, "understudy_overlay_bytes"), gauge(node, "understudy_snapshot_lease_extra_bytes")
    versions = gauge(node, "understudy_snapshot_lease_versions")
    if versions != held:
        raise RuntimeError(f"the node keeps {versions:g} versions by leases, not {held}")
    model = overlay + held * options.changes * one_change * held.bit_length()
    anonymous = node.resident_bytes() - node.file_bytes()
    named, newest = (granted_ms(node, options.grants, version) for version in (query.version, None))
    for token in tokens:
        call(node, "DELETE", f"/v1/snapshots/{token}")
    return {
        "overlay_mb": overlay / 1e6,
        "extra_mb": extra / 1e6,
        "with_leases": (overlay + extra) / overlay,
        "of_model": extra / model,
        "anonymous_mb": anonymous / 1e6,
        "grant_p50_ms": statistics.median(named),
        "grant_slowest_ms": max(named),
        "newest_grant_p50_ms": statistics.median(newest),
    }


def follow(query: FormatV2, node: Server, options: argparse.Namespace) -> None:
    """Commit the next version, and return when the node shows it."""
    first = query.version * options.changes
    commit(query, ((first + each) * STEP % options.keys for each in range(options.changes)))
    wait_for({"here": node}, query.version)


def granted_ms(node: Server, grants: int, version: int | None) -> list[float]:
    """Return the times of grants, each ended before the next: of a named version, or of the newest one."""
    found = []
    for _ in range(grants):
        began_s = time.perf_counter()
        token = lease(node, version)
        found.append((time.perf_counter() - began_s) * 1000)
        call(node, "DELETE", f"/v1/snapshots/{token}")
    return found


def lease(node: Server, version: int | None) -> str:
    """Lease a version, or the newest one."""
    return str(orjson.loads(call(node, "POST", "/v1/snapshots", {"version": version}))["snapshot"])


def call(node: Server, method: str, path: str, body: Any = None) -> bytes:
    """Return the answer to a request that succeeds."""
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
    try:
        sent = None if body is None else orjson.dumps(body)
        connection.request(method, path, sent, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise RuntimeError(f"{method} {path} was answered by {response.status}: {answer.decode()}")
    return answer


def gauge(node: Server, name: str) -> float:
    """Return a metric of a node that has no labels."""
    found = re.search(rf"^{name} (\S+)$", fetch(node.port, "/metrics")[1].decode(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the node has no metric {name}")
    return float(found[1])


def commit(query: FormatV2, numbers: Iterable[int]) -> None:
    """Commit a version that sets some words."""
    query.write(changed_words(numbers))
    query.commit()


if __name__ == "__main__":
    main()
