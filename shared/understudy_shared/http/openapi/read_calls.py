"""The read calls of the document, the same for nodes and routers: lookups, batches, stores (pure)."""

from __future__ import annotations

from understudy_shared.http.openapi import examples
from understudy_shared.http.openapi.calls import LOOKUPS, STORES, Answer, Call, json_body
from understudy_shared.http.openapi.json_schema import ref
from understudy_shared.http.openapi.parameters import BOUNDS, shared
from understudy_shared.http.problems import ProblemType

OF_A_STORE = (ProblemType.UNKNOWN_STORE, ProblemType.NOT_INITIALISED, ProblemType.TOO_LARGE)
OF_A_BOUND = (ProblemType.BAD_BOUND, ProblemType.LINEAGE_CHANGED)
_OF_A_READ = (*OF_A_STORE, ProblemType.NO_ACCEPTABLE_REPLICA)

_AT = '"$url/v1/stores/aircraft'


def read_calls(*also: ProblemType) -> tuple[Call, ...]:
    """`also` are the problems of lookups that only this kind of service has."""
    lookup = (
        Answer(200, "The key is there", ref("Found"), examples.FOUND),
        Answer(
            404, "The key is not there (`found` is false)", ref("AbsentOrProblem", required=["found"]), examples.ABSENT
        ),
    )
    problems = (ProblemType.BAD_KEY, *OF_A_BOUND, ProblemType.VERSION_GONE, *_OF_A_READ, *also)
    return (
        Call(
            "get",
            "/v1/stores/{store}/keys/{key}",
            "look_up",
            LOOKUPS,
            "Look one key up, friendly form",
            lookup,
            f'curl {_AT}/keys/N14228?max_lag=5"',
            problems,
            "Each key column is a path segment. The path is split before it is decoded, so `a%2Fb` is one segment.",
            shared("store", "key", *BOUNDS, "longs"),
        ),
        Call(
            "get",
            "/v1/stores/{store}/lookup",
            "look_up_exactly",
            LOOKUPS,
            "Look one key up, exact form",
            lookup,
            f'curl -G {_AT}/lookup" --data-urlencode \'key=["N14228"]\'',
            problems,
            "The key is JSON: nulls, empty texts, structs and arrays are included, and a global aggregate is `[]`.",
            shared("store", "key_json", *BOUNDS, "longs"),
        ),
        Call(
            "post",
            "/v1/stores/{store}/lookup",
            "look_up_many",
            LOOKUPS,
            "Look keys up, at most 1,000",
            (Answer(200, "A result for each key, in order", ref("BatchAnswer"), examples.COMPACT_BATCH),),
            f"curl {_AT}/lookup?compact=true\" -H 'Content-Type: application/json' "
            """-d '{"keys": [["N14228"], {"tailnum": "N0"}, [7]], "bounds": {"max_lag": 5}}'""",
            (*OF_A_BOUND, *OF_A_STORE),
            "A node reads each partition at one version throughout a batch. Bounds stand in the body, and a key whose "
            "bound cannot be kept has a problem as its result. A body has at most 8 MiB.",
            shared("store", "longs", "compact"),
            json_body(ref("Batch"), examples.BATCH),
        ),
        *_store_calls(),
    )


def _store_calls() -> tuple[Call, ...]:
    return (
        Call(
            "get",
            "/v1/stores",
            "list_stores",
            STORES,
            "What can be asked",
            (Answer(200, "Every store with its schema, and what is not served", ref("Stores"), examples.STORES),),
            'curl "$url/v1/stores"',
            (ProblemType.NOT_INITIALISED,),
        ),
        Call(
            "get",
            "/v1/stores/{store}",
            "describe_store",
            STORES,
            "The schema of one store",
            (Answer(200, "Its columns, partitions, bounds and newest version", ref("Store"), examples.STORE),),
            f'curl {_AT}"',
            OF_A_STORE,
            parameters=shared("store"),
        ),
    )
