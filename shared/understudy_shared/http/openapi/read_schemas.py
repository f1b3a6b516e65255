"""The shared schemas of reads: keys, answers, batches, stores, problems (pure)."""

from __future__ import annotations

from understudy_shared.base.words import ReplicaState, Role, StoreKind
from understudy_shared.http.openapi.json_schema import (
    COUNT,
    COUNT_OR_UNKNOWN,
    FLAG,
    PORT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_UNKNOWN,
    Json,
    exactly,
    list_of,
    one_of,
    one_schema_of,
    record,
    ref,
    said,
)
from understudy_shared.http.openapi.parameters import EXAMPLE_KEY, bounds_schema, cursor_schema, position_schema
from understudy_shared.http.problems import ProblemType
from understudy_shared.reads.bounds import MAX_BATCH_KEYS

_ROLE = one_of(map(str, Role))
_STATE = one_of(map(str, ReplicaState))
_COLUMNS = ref("Columns")
_READ: Json = {
    "partition": said(COUNT, "The partition of the store that Spark's hash puts the key into"),
    "version": {"type": "integer", "minimum": 1, "description": "The version that was read: batch N leaves N+1"},
    "committed_at": said(TIME_OR_UNKNOWN, "When Spark committed it; null once Spark purged the commit's file"),
    "watermark": said(TIME_OR_UNKNOWN, "The query's watermark in it; null for a query without one"),
    "lag": ref("Lag"),
    "served_by": ref("ServedBy"),
    "position": said(position_schema(), "What this reader has seen: send it as `min_position`, and no answer is older"),
}
_MARKS: Json = {
    "marks": said(
        list_of(one_of(["unverifiable-v1", "stale-snapshot"])),
        "What of the checkpoint is in doubt; left out when nothing is",
    )
}
_EXPIRED: Json = {
    "expires_at": said(TIME, "When the watermark forgets the key, or the TTL of a state variable is over"),
    "expired": said(
        {"type": ["boolean", "null"]},
        "Whether that has passed, and Spark has not yet removed what is here; null while it is not known",
    ),
}
_FOUND: Json = {
    "value": said(_COLUMNS, "What Spark stores, by column name, in a store of kind `value`: aggregation buffers"),
    "result": said(_COLUMNS, "What the query outputs of it, where that is known"),
    **_EXPIRED,
    "timeout_at": said(TIME_OR_UNKNOWN, "When the group times out, null for never. Of queries that use timeouts"),
    "sessions": said(list_of(ref("Session")), "By their starts. Of a store of kind `session`"),
    "rows": said(list_of(ref("JoinRow")), "In Spark's order. Of a store of kind `join-side`"),
    "values": said(list_of(ref("ListValue")), "In the query's order. Of a store of kind `list`"),
    "entries": said(list_of(ref("MapEntry")), "Of a store of kind `map`, asked for a grouping key alone"),
    "timers": said(list_of(TIME), "When the query is called for the key. Of a store of kind `timers`"),
    "next_cursor": said(cursor_schema(), "Where the next page of a list begins; null after the last"),
}
"""What is said of a key that is there, by the kind of its store."""
_IF_EXPIRED: Json = {"expired": _EXPIRED["expired"]}
_KEY: Json = {"key": said(_COLUMNS, "The key by column name, as it can be sent again")}
_INDEX: Json = {"read": said(COUNT, "Index of its read in `reads`")}


def _status(code: int) -> Json:
    return {"status": exactly(code)}


def _answer(is_found: bool, description: str, members: Json, optional: Json) -> Json:
    """An answer about a key. `found` has its value beside the member: generators take a constant boolean for a text."""
    schema = record(description, {**members, "found": FLAG}, optional)
    return {**schema, "dependentSchemas": {"found": {"properties": {"found": {"const": is_found}}}}}


def read_schemas() -> Json:
    """By name."""
    whose: Json = {"store": TEXT, **_KEY}
    return {
        "Columns": {"type": "object", "description": "Values by column name.", "additionalProperties": True},
        "KeyInOrder": {**list_of({}), "description": "The values of the key columns, in schema order."},
        "Key": {
            "description": "An array in schema order, or an object by column name. `[]` for a global aggregate.",
            "anyOf": [ref("KeyInOrder"), _COLUMNS],
            "example": [EXAMPLE_KEY],
        },
        "Bounds": bounds_schema(),
        "Lag": record(
            "How far the replica is behind. Null is unknown: the end of the query is not confirmed.",
            {
                "current_offset_position": said(COUNT, "The version that it is at"),
                "end_offset_position": said(COUNT_OR_UNKNOWN, "The newest committed version"),
                "offset_lag": said(COUNT_OR_UNKNOWN, "Versions behind"),
                "time_lag_ms": said(COUNT_OR_UNKNOWN, "Milliseconds behind"),
            },
        ),
        "ServedBy": record(
            "The replica that answered.",
            {"host": TEXT, "port": PORT, "role": _ROLE, "state": _STATE},
            {"node_id": said(TEXT, "Its node, in a cluster")},
        ),
        "Found": _answer(True, "A key that is there.", {**whose, **_READ}, {**_FOUND, **_MARKS}),
        "Absent": _answer(
            False,
            "A key that is not there. Only this body means that: any other 404 is a problem.",
            {**whose, **_READ},
            {**_EXPIRED, **_MARKS},
        ),
        "FoundResult": _answer(
            True, "A key of a batch that is there.", {**_status(200), **whose, **_READ}, {**_FOUND, **_MARKS}
        ),
        "AbsentResult": _answer(
            False, "A key of a batch that is not there.", {**_status(404), **whose, **_READ}, {**_EXPIRED, **_MARKS}
        ),
        "CompactFound": _answer(
            True, "A key of a compact batch that is there.", {**_status(200), **_KEY, **_INDEX}, _FOUND
        ),
        "CompactAbsent": _answer(
            False, "A key of a compact batch that is not there.", {**_status(404), **_KEY, **_INDEX}, _EXPIRED
        ),
        "JoinRow": record(
            "A row of a side of a join.",
            {
                "value": _FOUND["value"],
                "matched": said({"type": ["boolean", "null"]}, "Whether it found a match"),
                **_IF_EXPIRED,
            },
            {"result": _FOUND["result"]},
        ),
        "ListValue": record("A value of a list.", {"value": _FOUND["value"]}, {"result": _FOUND["result"], **_EXPIRED}),
        "MapEntry": record(
            "An entry of a map.",
            {"key": said(_COLUMNS, "The user key by column name"), "value": _FOUND["value"]},
            {"result": _FOUND["result"], **_EXPIRED},
        ),
        "Session": record(
            "A session of a key, which expires at its end.",
            {"start": TIME, "end": TIME, "value": _FOUND["value"], **_IF_EXPIRED},
            {"result": _FOUND["result"]},
        ),
        "Read": record("From where, and how old: the same for all results that name it.", _READ, _MARKS),
        "Batch": _batch(),
        "BatchResult": one_schema_of("FoundResult", "AbsentResult", "Problem"),
        "CompactResult": one_schema_of("CompactFound", "CompactAbsent", "Problem"),
        "BatchAnswer": one_schema_of("CompactBatch", "LongBatch"),
        "AbsentOrProblem": one_schema_of("Absent", "Problem"),
        "LongBatch": record(
            "A result for each key, in order.",
            {"results": list_of(ref("BatchResult"))},
            is_closed=True,
        ),
        "CompactBatch": record(
            "A result for each key, in order; what results share is in `reads`.",
            {
                "store": TEXT,
                "reads": list_of(ref("Read")),
                "results": list_of(ref("CompactResult")),
            },
            is_closed=True,
        ),
        **_store_schemas(),
        **_problem_schemas(),
    }


def _batch() -> Json:
    keys: Json = {
        "type": "array",
        "maxItems": MAX_BATCH_KEYS,
        "items": {},
        "description": "Keys, each an array in schema order or an object by column name. A key that does not fit the "
        "store has a problem as its result, and the others are answered.",
    }
    return {
        "type": "object",
        "description": "Keys to look up under the same bounds.",
        "required": ["keys"],
        "additionalProperties": False,
        "properties": {"keys": keys, "bounds": ref("Bounds")},
    }


def _store_schemas() -> Json:
    column: Json = {"name": TEXT, "type": said(TEXT, "Spark's name of the type")}
    return {
        "KeyColumn": record("A key column.", {**column, "example": said({}, "A value of the type, as JSON")}),
        "ValueColumn": record("A value column, as Spark stores it.", {**column, "nullable": FLAG}),
        "ResultColumn": record("An output column of the query.", column),
        "StoredSchema": record(
            "A schema by which Spark wrote a store: the columns as they are stored, with those of a TTL.",
            {
                "schema_id": said(COUNT, "The number that records of Avro state have of it; else 0"),
                "from_batch": said(COUNT_OR_UNKNOWN, "The first batch that wrote it; null where no file says it"),
                "key": list_of(ref("ValueColumn")),
                "value": list_of(ref("ValueColumn")),
            },
        ),
        "Store": record(
            "A store, and how to ask it.",
            {
                "store": TEXT,
                "operator_id": COUNT,
                "operator": said(TEXT, "Spark's name of the stateful operator"),
                "kind": said(one_of(map(str, StoreKind)), "What it keeps of a key, and so what an answer says"),
                "key": list_of(ref("KeyColumn")),
                "value": said(list_of(ref("ValueColumn")), "The columns of what it keeps; none of a set"),
                "partitions": COUNT,
                "lineage": said(TEXT, "One life of the query: the id in its checkpoint"),
                "application_id": TEXT,
                "bounds": said(ref("Bounds"), "Of readers that give none"),
                "end_offset_position": said(COUNT_OR_UNKNOWN, "The newest committed version"),
            },
            {
                "result": list_of(ref("ResultColumn")),
                "schemas": said(
                    list_of(ref("StoredSchema")),
                    "The history of its schemas, oldest first, at most 32; only where one store is asked for",
                ),
                "unnamed": said(list_of(TEXT), "Value columns of which no result is made"),
                "user_key": said(
                    list_of(ref("KeyColumn")), "What follows the key where one entry of a map is asked for"
                ),
            },
        ),
        "NotServed": record(
            "An operator of the query, or one of its stores, that cannot be looked up.",
            {"operator_id": COUNT, "reason": TEXT},
            {"operator": TEXT, "store": TEXT},
        ),
        "Stores": record(
            "What can be asked.", {"stores": list_of(ref("Store")), "not_served": list_of(ref("NotServed"))}
        ),
        "Host": record("Where a node listens.", {"host": TEXT, "port": PORT}),
    }


def _problem_schemas() -> Json:
    replica: Json = {
        "host": TEXT,
        "port": PORT,
        "role": one_of([*map(str, Role), "warmup"]),
        "state": TEXT_OR_NULL,
        "reason": said(TEXT, "Why it did not answer"),
    }
    known: Json = {
        "node_id": TEXT,
        "version": COUNT_OR_UNKNOWN,
        "offset_lag": COUNT_OR_UNKNOWN,
        "time_lag_ms": COUNT_OR_UNKNOWN,
        "report_age_ms": said(COUNT_OR_UNKNOWN, "How old this is: 0 when the node said it itself"),
        "health": TEXT_OR_NULL,
        "detail": TEXT,
    }
    return {
        "Candidate": record("A replica that could have answered, and why it did not.", replica, known),
        "Problem": record(
            "What went wrong (RFC 9457): `type` is stable, `fix` says what to do.",
            {
                "type": one_of(each.slug for each in ProblemType),
                "title": TEXT,
                "status": {"type": "integer", "minimum": 400, "maximum": 599},
                "detail": said(TEXT, "What was wrong"),
            },
            {"where": TEXT, "fix": TEXT, "candidates": list_of(ref("Candidate"))},
        ),
    }
