"""First pages of a scan, a seek by prefix, and the first answer of an older version, at a node, one connection.

Used by `benchmarks.restore_and_lookup`, which writes the checkpoints.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from urllib.parse import quote

from benchmarks.big_checkpoint import BigCheckpoint
from benchmarks.servers import Server

ROUNDS = 200
OLDER_VERSION = 2
"""The version before the last, of which Spark wrote a snapshot."""


def measure(checkpoint: BigCheckpoint, node: Server) -> dict[str, float]:
    """Return the time of the first page of a store and of later first pages, of a seek and of a lookup by turns, and of
    the first lookup of an older version in one partition, in ms.
    """
    connection = http.client.HTTPConnection("127.0.0.1", node.port)
    first_ms = _took_ms(connection, "/v1/stores/op0/scan")
    pages = [_took_ms(connection, "/v1/stores/op0/scan") for _ in range(ROUNDS // 10)]
    seeks, lookups = [], []
    for number in range(ROUNDS):
        key = checkpoint.key(number)
        prefix = quote(json.dumps([key]), safe="")
        seeks.append(_took_ms(connection, f"/v1/stores/op0/scan?prefix={prefix}"))
        lookups.append(_took_ms(connection, f"/v1/stores/op0/keys/{key}"))
    older_ms = _took_ms(connection, f"/v1/stores/op0/keys/{checkpoint.key(7)}?version={OLDER_VERSION}")
    return {
        "first_page_ms": first_ms,
        "page_ms": statistics.median(pages),
        "seek_ms": statistics.median(seeks),
        "lookup_ms": statistics.median(lookups),
        "older_ms": older_ms,
    }


def _took_ms(connection: http.client.HTTPConnection, path: str) -> float:
    began_s = time.perf_counter()
    connection.request("GET", path)
    reply = connection.getresponse()
    body = reply.read()
    took_ms = (time.perf_counter() - began_s) * 1000
    assert reply.status == 200, body
    return took_ms


def shown(figures: dict[str, float], restore_s: float) -> list[tuple[str, str, str]]:
    """Return the rows of a table: what, how much, and beside what."""
    seeks, older = figures["seek_ms"] / figures["lookup_ms"], figures["older_ms"] / restore_s / 1000
    later = f"later ones {figures['page_ms']:.1f} ms (goal 50 ms)"
    return [
        ("first page of 1,000 rows", f"{figures['first_page_ms']:,.1f} ms", later),
        ("seek by prefix, one connection", f"{figures['seek_ms']:.2f} ms", f"{seeks:.1f} x a lookup (goal 2)"),
        ("first answer of an older version", f"{figures['older_ms']:,.0f} ms", f"{older:.2f} x the restore (goal 3)"),
    ]
