"""The examples of the document: one store of the demo, as a service answers about it."""

from __future__ import annotations

from understudy_shared.http.openapi.json_schema import Json
from understudy_shared.http.openapi.parameters import EXAMPLE_KEY, EXAMPLE_STORE

LINEAGE = "6f1c7f0e-6f0b-4c0e-9a55-0c4d9a1f3b52"
APPLICATION = "flights"
NODE, HOST, PORT = "node-1", "10.0.0.11", 7101
TIME = "2026-11-20T11:00:03.120000Z"
POSITION = "us1.WyJmbGlnaHRzIiwiNmYxYzdmMGUiLDQxOCwxXQ"

LAG: Json = {"current_offset_position": 418, "end_offset_position": 418, "offset_lag": 0, "time_lag_ms": 12}
READ: Json = {
    "partition": 3,
    "version": 418,
    "committed_at": TIME,
    "watermark": None,
    "lag": LAG,
    "served_by": {"host": HOST, "port": PORT, "role": "active", "state": "RUNNING", "node_id": NODE},
    "position": POSITION,
}
_KEY: Json = {"tailnum": EXAMPLE_KEY}
_VALUE: Json = {"n": 15, "delay_sum": 118.0, "delay_count": 15}
_RESULT: Json = {"flights": 15, "delay": 7.866666666666666}

FOUND: Json = {"store": EXAMPLE_STORE, "key": _KEY, "found": True, "value": _VALUE, "result": _RESULT, **READ}
ABSENT: Json = {"store": EXAMPLE_STORE, "key": {"tailnum": "N0"}, "found": False, **READ}

BATCH: Json = {"keys": [[EXAMPLE_KEY], {"tailnum": "N0"}, [7]], "bounds": {"max_lag": 5}}
_BAD_KEY: Json = {
    "type": "bad-key",
    "title": "The key does not fit the store's key columns",
    "status": 400,
    "detail": "7 is no string",
    "where": "column tailnum (string)",
    "fix": 'Send for example "text"',
}
COMPACT_BATCH: Json = {
    "store": EXAMPLE_STORE,
    "reads": [READ],
    "results": [
        {"status": 200, "key": _KEY, "found": True, "value": _VALUE, "result": _RESULT, "read": 0},
        {"status": 404, "key": {"tailnum": "N0"}, "found": False, "read": 0},
        _BAD_KEY,
    ],
}

STORE: Json = {
    "store": EXAMPLE_STORE,
    "operator_id": 0,
    "operator": "stateStoreSave",
    "kind": "value",
    "key": [{"name": "tailnum", "type": "string", "example": "text"}],
    "value": [
        {"name": "n", "type": "bigint", "nullable": False},
        {"name": "delay_sum", "type": "double", "nullable": True},
        {"name": "delay_count", "type": "bigint", "nullable": False},
    ],
    "result": [{"name": "flights", "type": "bigint"}, {"name": "delay", "type": "double"}],
    "partitions": 4,
    "lineage": LINEAGE,
    "application_id": APPLICATION,
    "bounds": {"max_staleness_ms": 2000},
    "end_offset_position": 418,
}
STORES: Json = {
    "stores": [STORE],
    "not_served": [{"operator_id": 1, "operator": "symmetricHashJoin", "reason": "a collated key column"}],
}
