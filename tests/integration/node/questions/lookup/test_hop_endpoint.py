"""The hop between router and node: what the plain lookup answers, for many keys at once, or a typed refusal of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.hop_client import group_of, hop, keys_of, request_of
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.spark.counting_query import WORDS

from understudy_node.checkpoint.files import LocalFiles
from understudy_shared.base.words import StoreName
from understudy_shared.questions.lookup.hop import ABSENT, FOUND, PROBLEM, HopKey
from understudy_shared.questions.scan.hop import PATH as SCAN_PATH
from understudy_shared.reads.bounds import Bound, UnknownLag
from understudy_shared.reads.tokens import decode_position
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, LongType, StructType

VERSION = 3


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("hops")
    checkpoint = HandmadeCheckpoint(folder / "checkpoint").create().add(1, 2, VERSION)
    with served_node(checkpoint.path, folder / "data") as node:
        node.wait_for_version(VERSION)
        yield node


class CountingFiles(LocalFiles):
    """A checkpoint on disk, with how often each file was read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()

    def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        self.reads[path] += 1
        return super().read(path, max_bytes)


def layout_of(served: ServedNode, *, num_hash_columns: int | None = None) -> str:
    """What a router says whose catalogue has the store of the node, or one with other hash columns."""
    generation = served.node.generation
    assert generation is not None
    holding = generation.readers[StoreName("op0")]
    codec = KeyCodec(holding.store.key_schema, num_hash_columns=num_hash_columns)
    return codec.layout(holding.partitions)


def without_age(body: dict[str, object]) -> dict[str, object]:
    """An answer without what passes between two requests."""
    lag = body["lag"]
    assert isinstance(lag, dict)
    return {**body, "lag": {**lag, "time_lag_ms": None}}


def test_a_hop_answers_every_key_as_the_plain_lookup_does(served: ServedNode) -> None:
    keys = [[word] for word in (*WORDS, "absent", "another")]
    reply, outcomes = hop(served, request_of(served, group_of(served, keys_of(served, keys))))
    assert (reply.end_version, reply.term, reply.epoch) == (VERSION, 0, 0)
    assert [outcome.kind for outcome in outcomes] == [FOUND] * len(WORDS) + [ABSENT] * 2
    for key, outcome in zip(keys, outcomes, strict=True):
        plain = served.look_up(key)
        assert plain.status == (200 if outcome.kind == FOUND else 404)
        head = {name: plain.body[name] for name in ("store", "key")}
        assert without_age({**head, **outcome.body}) == without_age(plain.body)


def test_groups_of_one_hop_are_answered_in_order_each_under_its_own_bound(served: ServedNode) -> None:
    one, two = keys_of(served, [[WORDS[0]]]), keys_of(served, [[WORDS[1]], ["absent"]])
    seen = decode_position(str(served.look_up([WORDS[0]]).body["position"]))
    future = Bound(min_position=type(seen)(seen.application_id, seen.lineage, VERSION + 1, None))
    request = request_of(
        served,
        group_of(served, one, bound=future),
        group_of(served, two, bound=Bound(max_lag=0, min_position=seen)),
        group_of(served, one, lineage="another-life"),
        group_of(served, [*one, *one]),
    )
    _, outcomes = hop(served, request)
    assert [outcome.kind for outcome in outcomes] == [PROBLEM, FOUND, ABSENT, PROBLEM, FOUND, FOUND]
    assert outcomes[0].reasons == ["below-min-position"]


@pytest.mark.parametrize(
    ("changed", "application_id", "problem"),
    [
        ({"lineage": "another-life"}, "", "lineage-changed"),
        ({"partitions": 4}, "", "not-owner"),
        ({"partitions": 1}, "", "not-owner"),
        ({"store": "op7"}, "", "unknown-store"),
        ({}, "another", "not-owner"),
    ],
    ids=["lineage", "more partitions", "fewer partitions", "store", "application"],
)
def test_a_hop_about_anything_else_than_what_is_served_is_refused_key_by_key(
    served: ServedNode, changed: dict[str, object], application_id: str, problem: str
) -> None:
    keys = keys_of(served, [[WORDS[0]], ["absent"]])
    group = group_of(served, keys, **changed)  # type: ignore[arg-type]  # each is of its parameter's type
    _, outcomes = hop(served, request_of(served, group, application_id=application_id))
    assert [outcome.problem for outcome in outcomes] == [problem, problem]


def test_a_partition_that_there_is_not_is_refused_and_the_others_are_answered(served: ServedNode) -> None:
    key = keys_of(served, [[WORDS[0]]])[0]
    _, outcomes = hop(served, request_of(served, group_of(served, [key._replace(partition=2), key])))
    assert outcomes[0].problem == "not-owner"
    assert outcomes[1].kind == FOUND


def test_a_key_that_is_asked_for_in_another_partition_that_is_held_is_not_called_absent(served: ServedNode) -> None:
    """What a router sends whose catalogue says wrongly how keys are placed."""
    keys = keys_of(served, [[word] for word in (*WORDS, "absent")])
    elsewhere = [key._replace(partition=1 - key.partition) for key in keys]
    for group in (group_of(served, elsewhere), *(group_of(served, [key]) for key in elsewhere)):
        _, outcomes = hop(served, request_of(served, group))
        assert {outcome.problem for outcome in outcomes} == {"outdated-catalogue"}
    _, outcomes = hop(served, request_of(served, group_of(served, [*keys, *elsewhere])))
    assert [outcome.kind for outcome in outcomes[: len(keys)]] == [FOUND] * len(WORDS) + [ABSENT]
    assert {outcome.problem for outcome in outcomes[len(keys) :]} == {"outdated-catalogue"}


def test_bytes_that_are_no_key_of_the_store_are_not_called_absent(served: ServedNode) -> None:
    rows = [b"", b"word", b"\xff" * 16, KeyCodec(StructType((Field("n", LongType()),))).encode((7,))]
    keys = [HopKey(partition, row) for row in rows for partition in (0, 1)]
    _, outcomes = hop(served, request_of(served, group_of(served, keys)))
    assert {outcome.problem for outcome in outcomes} == {"outdated-catalogue"}


def test_keys_of_another_layout_are_refused(served: ServedNode) -> None:
    keys = keys_of(served, [[WORDS[0]], ["absent"]])
    layouts = [layout_of(served), layout_of(served, num_hash_columns=0), "of a later release"]
    _, outcomes = hop(served, request_of(served, *(group_of(served, keys, layout=layout) for layout in layouts)))
    assert [outcome.kind for outcome in outcomes] == [FOUND, ABSENT] + [PROBLEM] * 4
    assert {outcome.problem for outcome in outcomes[2:]} == {"outdated-catalogue"}


def test_a_position_older_than_the_retention_is_looked_for_in_the_storage_once(tmp_path: Path) -> None:
    """Readers may carry it for weeks: each lookup, hop and batch with it would read the storage."""
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2, VERSION)
    for partition in (0, 1):
        checkpoint.write(checkpoint.snapshot_path(2, partition), checkpoint.snapshot(2, partition))
    (checkpoint.path / "commits/0").unlink()
    files = CountingFiles(checkpoint.path)
    with served_node(checkpoint.path, tmp_path / "data", files=files) as served:
        served.wait_for_version(VERSION)
        now = decode_position(str(served.look_up([WORDS[0]]).body["position"]))
        old = replace(now, version=1, committed_at_us=None)
        before = files.reads["commits/0"]
        for _ in range(5):
            assert served.look_up([WORDS[0]], bounds=f"min_position={old.encode()}").status == 200
            group = group_of(served, keys_of(served, [[WORDS[0]]]), bound=Bound(min_position=old))
            _, (outcome,) = hop(served, request_of(served, group))
            assert outcome.kind == FOUND
        assert files.reads["commits/0"] - before <= 1


def test_the_bound_is_measured_against_the_newest_end_that_the_router_heard_of(served: ServedNode) -> None:
    keys = keys_of(served, [[WORDS[0]]])
    newer = VERSION + 5
    _, (plain,) = hop(served, request_of(served, group_of(served, keys), end_version=newer))
    lag = plain.body["lag"]
    assert isinstance(lag, dict)
    assert (lag["current_offset_position"], lag["end_offset_position"], lag["offset_lag"]) == (VERSION, newer, 5)
    for max_lag, kind in ((5, FOUND), (4, PROBLEM)):
        group = group_of(served, keys, bound=Bound(max_lag=max_lag, unknown_lag=UnknownLag.SERVE))
        _, (outcome,) = hop(served, request_of(served, group, end_version=newer))
        assert outcome.kind == kind
        assert kind == FOUND or outcome.reasons == ["lag-exceeded"]
    _, (older,) = hop(served, request_of(served, group_of(served, keys), end_version=1))
    assert isinstance(older.body["lag"], dict)
    assert older.body["lag"]["offset_lag"] == 0


def test_a_part_of_a_page_refuses_other_sites_and_other_methods_though_it_is_answered_without_asgi(
    served: ServedNode,
) -> None:
    def ask(method: str, **headers: str) -> tuple[int, object]:
        shown = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(HTTPConnection("127.0.0.1", served.port, timeout=30)) as connection:
            connection.request(method, SCAN_PATH, body=b"{}" if method == "POST" else None, headers=shown)
            reply = connection.getresponse()
            return reply.status, json.loads(reply.read())["type"]

    as_json = {"content_type": "application/json"}
    assert ask("POST", **as_json, sec_fetch_site="cross-site") == (403, "cross-site")
    assert ask("POST", **as_json, origin="https://elsewhere.example") == (403, "cross-site")
    assert ask("POST", **as_json) == (400, "bad-request")
    assert ask("GET") == (405, "method-not-allowed")
