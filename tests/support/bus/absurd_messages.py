"""A stranger who can write to the bus sends what no cluster would: through its channel and into its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import redis

from understudy_shared.bus.gossip import Names
from understudy_shared.bus.message_auth import split
from understudy_shared.bus.redis_scripts import PUT, opened

ABSURD = (2**53 + 1, 2**53, 2**52, 2**48 + 1, 2**48, 2**47)
FORGED = "forged-"
"""What the ids of forged members begin with."""

FORGED_HEARTBEAT_MS = 5000
"""Forged members are gone three of these after their heartbeat."""

AT_ONCE = 500

GARBAGE = (
    b"",
    b"assignment\n" + b"[" * 100_000,
    b"heartbeat\n{",
    b"heartbeat\n\xff\xfe",
    b"announcement\n" + b'{"a":' * 5000,
    b"hint\n" + orjson.dumps({"format": 1, "application_id": "x", "version": 2**63}),
)


class AbsurdMessages:
    """One stranger. What it says is made from what stands in Redis."""

    def __init__(self, url: str, application_id: str) -> None:
        self._redis = redis.Redis.from_url(url, socket_timeout=10)
        self._application_id = application_id
        self.names = Names(application_id)

    def close(self) -> None:
        self._redis.close()

    def all_at_once(self, *, members: int) -> None:
        """Send each kind of absurd message once."""
        self.assignments()
        self.heartbeats()
        self.catalogues()
        self.announcements()
        self.members(members)
        for message in GARBAGE:
            self._publish(message)

    def assignments(self) -> None:
        """Assignments with numbers that no node can follow, published and written, and a term counter: one by which
        nobody has anything, and the current one.
        """
        known = self._document(self.names.assignment)
        for number in ABSURD:
            both = {"term": number, "epoch": number}
            for forged in (known | both | {"tasks": {}}, known | both, known | {"epoch": number}):
                payload = b"assignment\n" + orjson.dumps(forged)
                self._publish(payload)
                self._redis.set(self.names.assignment, b"us1 fenced %d %d\n" % (number, number) + payload)
        self._redis.set(self.names.term, str(2**53))

    def heartbeats(self) -> None:
        """Send heartbeats in the name of each living process."""
        for key in list(self._redis.scan_iter(self._pattern(self.names.nodes), count=1000)):
            known = self._document(key)
            if not known or known["node_id"].startswith(FORGED):
                continue
            later = known["sequence"] + 1_000_000
            for fields in (
                *({"sequence": number} for number in ABSURD),
                {"sequence": later, "term": 2**47, "epoch": 2**47},
                {"sequence": later + 1, "end_version": 2**47},
                {"sequence": later + 2},
            ):
                self._publish(b"heartbeat\n" + orjson.dumps(known | fields))

    def members(self, count: int) -> None:
        """Forged members of this history, ready to be given everything."""
        known = next(iter(self._living()), {})
        for begin in range(0, count, AT_ONCE):
            pipeline = self._redis.pipeline(transaction=False)
            for number in range(begin, min(begin + AT_ONCE, count)):
                forged = known | {
                    "node_id": f"{FORGED}{number}",
                    "incarnation": "f",
                    "endpoint": {"host": "127.0.0.1", "port": 1},
                    "heartbeat_ms": FORGED_HEARTBEAT_MS,
                    "state": "serving",
                    "held": [],
                    "exceptions": {},
                }
                payload = b"heartbeat\n" + orjson.dumps(forged)
                pipeline.publish(self.names.channel, payload)
                pipeline.set(self.names.node(forged["node_id"]), b"us1 owned f\n" + payload, px=3 * FORGED_HEARTBEAT_MS)
            pipeline.execute()

    def catalogues(self) -> None:
        """Every catalogue that is known, altered under its name."""
        for key in list(self._redis.scan_iter(self._pattern(self.names.catalogues), count=1000)):
            known = self._document(key)
            for store in known.get("stores", ()):
                store["num_hash_columns"] = 0
                store["key_names"] = ["same"] * 3
            self._redis.set(key, PUT + b"catalogue\n" + orjson.dumps(known), px=60_000)

    def announcements(self) -> None:
        """Announce names that fit no store."""
        for beat in self._living():
            for stores in (
                [{"operator_id": 0, "name": "x", "key": ["same"] * 4000}] * 200,
                [{"operator_id": 2**47, "result": [{"name": "a", "function": "sum", "buffers": [9], "type": "map<"}]}],
            ):
                forged = {
                    "format": 1,
                    "application_id": self._application_id,
                    "query_id": beat.get("lineage") or "x",
                    "stores": stores,
                }
                self._publish(b"announcement\n" + orjson.dumps(forged))
            return

    def _living(self) -> Iterator[dict[str, Any]]:
        for key in list(self._redis.scan_iter(self._pattern(self.names.nodes), count=1000)):
            known = self._document(key)
            if known and not known["node_id"].startswith(FORGED):
                yield known

    def _document(self, key: str | bytes) -> dict[str, Any]:
        value = self._redis.get(key)
        found = opened(value) if isinstance(value, bytes) else None
        if found is None:
            return {}
        _, unsigned = split(found.payload)
        document: dict[str, Any] = orjson.loads(unsigned.partition(b"\n")[2])
        return document

    def _publish(self, message: bytes) -> None:
        self._redis.publish(self.names.channel, message)

    @staticmethod
    def _pattern(prefix: str) -> str:
        return prefix.replace("[", "\\[") + "*"
