"""The demo's topology, real processes throughout: while the query runs and nodes die, every answer is Spark's.

In this order: the last test ends the demo.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.support.cluster.served_node import Reply
from tests.support.oracle.json import as_text, json_array, json_object
from tests.support.oracle.spark_reader import OracleRow, read_operators, row_types
from tests.support.services.demo_process import END_LIMIT_S, DemoPart, DemoProcess
from tests.support.services.process_table import is_there
from tests.support.spark.queries import committed_batches, wait_until

from understudy_shared.bus.assignments import AssignmentChange
from understudy_shared.bus.gossip import Names
from understudy_shared.bus.messages import Assignment

KEY = "N14228"
SAMPLED = 40


@dataclass(slots=True)
class Sample:
    """Keys of one store as Spark's reader found them, and what routers answered for them, by version."""

    store: str
    operator_id: int
    types: tuple[StructType, StructType]
    keys: list[list[object]]
    answers: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)


def samples_of(spark: SparkSession, demo: DemoProcess) -> list[Sample]:
    """Some keys of every store, as they are at the last commit."""
    stores = demo.parts("router")[0].get("/v1/stores").body["stores"]
    assert isinstance(stores, list)
    names = {store["operator_id"]: store["store"] for store in stores}
    batch = committed_batches(demo.checkpoint)[-1]
    rows = read_operators(spark, demo.checkpoint, names, [batch])
    samples = []
    for operator, store in names.items():
        types = row_types(spark, demo.checkpoint, operator)
        keys = sorted((json_array(row.key, types[0]) for row in rows[operator][batch]), key=as_text)
        assert keys, store
        samples.append(Sample(store, operator, types, keys[:: max(1, len(keys) // SAMPLED)]))
    return samples


def look_up_all(router: DemoPart, sample: Sample) -> None:
    """Ask for the whole sample in one batch, and keep each answer under the version it states."""
    reply = router.post(f"/v1/stores/{sample.store}/lookup", json.dumps({"keys": sample.keys}).encode())
    assert reply.status == 200, reply
    results = reply.body["results"]
    assert isinstance(results, list)
    for key, result in zip(sample.keys, results, strict=True):
        assert result["status"] in {200, 404}, result
        assert result["found"] is (result["status"] == 200)
        sample.answers.setdefault(result["version"], {})[as_text(key)] = result


def assert_spark_says_so(spark: SparkSession, demo: DemoProcess, samples: list[Sample]) -> None:
    """Each answer's partition and value are what Spark's reader finds at the version that the answer states."""
    versions = {version for sample in samples for version in sample.answers}
    assert min(versions) >= 1, "no batch wrote version 0"
    operators = [sample.operator_id for sample in samples]
    state = read_operators(spark, demo.checkpoint, operators, [version - 1 for version in sorted(versions)])
    for sample in samples:
        for version, answers in sample.answers.items():
            rows = state[sample.operator_id][version - 1]
            expected = {as_text(json_array(row.key, sample.types[0])): row for row in rows}
            for key, answer in answers.items():
                assert_is(expected.get(key), answer, sample.types[1])


def assert_is(row: OracleRow | None, answer: dict[str, Any], value_type: StructType) -> None:
    """An answer is a row of Spark's, or absent as there."""
    assert answer["found"] is (row is not None), answer
    if row is not None:
        assert answer["partition"] == row.partition
        stored = list(json_object(row.value, value_type).values())
        assert as_text(list(answer["value"].values())) == as_text(stored), answer


class Reader(threading.Thread):
    """Looks one key up at all routers in turn, again and again."""

    def __init__(self, routers: list[DemoPart]) -> None:
        super().__init__(name="reader")
        self._routers = routers
        self._ended = threading.Event()
        self.replies: list[Reply] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.wait(0.005):
                for router in self._routers:
                    self.replies.append(router.get(f"/v1/stores/aircraft/keys/{KEY}"))
        except BaseException as error:  # reported by the test: a thread of its own cannot fail it
            self.failure = error

    def end(self) -> None:
        self._ended.set()
        self.join(30)
        assert self.failure is None, repr(self.failure)


def active_part(demo: DemoProcess) -> DemoPart:
    """The node that is active for the key."""
    host = demo.parts("router")[0].get(f"/v1/stores/aircraft/metadata/{KEY}").body["active_host"]
    assert isinstance(host, dict)
    return next(part for part in demo.parts("node") if part.port == host["port"])


def report_of(router: DemoPart) -> dict[str, Any]:
    reply = router.get("/admin/v1/lag")
    assert reply.status == 200, reply
    return reply.body


def roles_of(report: dict[str, Any], node_id: str) -> set[str]:
    """The roles of a node's replicas in a lag report."""
    return {
        replica["role"]
        for store in report["stores"]
        for replica in store["partitions"]
        if replica["node_id"] == node_id and replica["current_offset_position"] is not None
    }


def live_nodes(report: dict[str, Any]) -> set[str]:
    return {node["node_id"] for node in report["nodes"] if node["live"]}


@pytest.mark.full
def test_when_the_active_is_killed_lookups_go_on_from_a_standby_with_its_true_lag_and_it_comes_back_to_its_place(
    spark: SparkSession, demo: DemoProcess
) -> None:
    routers, victim = demo.parts("router"), active_part(demo)
    (sample,) = [each for each in samples_of(spark, demo) if each.store == "aircraft"]
    reader = Reader(routers)
    reader.start()
    wait_until(lambda: len(reader.replies) > 20 or reader.failure is not None, what="lookups")
    os.kill(victim.pid, signal.SIGKILL)
    killed_at = len(reader.replies)
    wait_until(
        lambda: (
            reader.failure is not None or any(_port_of(reply) != victim.port for reply in reader.replies[killed_at:])
        ),
        what="an answer from a standby",
    )
    for router in routers:
        wait_until(lambda router=router: victim.name not in live_nodes(report_of(router)), what="its end in the tables")  # type: ignore[misc]
    reader.end()
    assert {reply.status for reply in reader.replies} == {200}, [r for r in reader.replies if r.status != 200][:3]
    _assert_lags_are_true(reader.replies)
    died = demo.wait_for("died", limit_s=END_LIMIT_S)
    assert (died["name"], died["how"]) == (victim.name, "was killed by SIGKILL")
    assert f"--node-id {victim.name} " in died["detail"]
    for router in routers:
        look_up_all(router, sample)

    assignments = AssignmentsHeard(demo)
    with assignments:
        again = subprocess.Popen(
            victim.argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(
                lambda: "standby" in roles_of(report_of(routers[0]), victim.name),
                what="the node as a standby again",
                limit_s=60,
            )
        finally:
            again.terminate()
            again.wait(30)
    duties = assignments.first_duties(victim.name)
    assert "warmup" not in duties, "what it has on its disk was restored elsewhere within rebalance_delay_ms"
    assert_spark_says_so(spark, demo, [sample])


def test_ctrl_c_stops_everything_and_leaves_nothing_behind(demo: DemoProcess) -> None:
    ready = demo.wait_for("ready")
    group = [process["pid"] for process in ready["processes"]]
    assert demo.interrupt() == 0
    wait_until(lambda: not any(map(is_there, group)), what="the end of all")
    assert demo.events[-1]["event"] == "stopped"
    assert [event for event in demo.events if event["event"] == "killed"] == []
    assert not Path(ready["folder"]).exists()
    assert list(demo.scratch.iterdir()) == []


def _port_of(reply: Reply) -> object:
    served_by = reply.body["served_by"]
    assert isinstance(served_by, dict)
    return served_by["port"]


def _assert_lags_are_true(replies: list[Reply]) -> None:
    """A lag is the end less the version; both only grow on a node, and the version is the answer's own."""
    versions: dict[object, int] = {}
    for reply in replies:
        lag, version, port = reply.body["lag"], reply.body["version"], _port_of(reply)
        assert isinstance(lag, dict)
        assert isinstance(version, int)
        assert lag["current_offset_position"] == version
        assert lag["offset_lag"] is None or lag["offset_lag"] == lag["end_offset_position"] - version >= 0
        assert version >= versions.get(port, 0)
        versions[port] = version


class AssignmentsHeard:
    """Every assignment that is written while the block runs, or what changed."""

    def __init__(self, demo: DemoProcess) -> None:
        self._client = redis.Redis.from_url(demo.ready["redis"])
        self._demo = demo
        self._ended = threading.Event()
        self.heard: list[Assignment | AssignmentChange] = []

    def __enter__(self) -> None:
        self._listener = self._client.pubsub()  # type: ignore[no-untyped-call]
        self._listener.subscribe(Names(self._demo.ready["application_id"]).channel)
        wait_until(lambda: self._listener.get_message(timeout=1) is not None, what="the subscription")
        self._thread = threading.Thread(target=self._run, name="assignments")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)
        self._listener.close()
        self._client.close()

    def first_duties(self, node_id: str) -> list[str]:
        """What a node was given, in the order in which each duty came up for the first time."""
        found: list[str] = []
        for assignment in self.heard:
            for assigned in assignment.tasks.values():
                duties: dict[str, list[str | None]] = {
                    "active": [assigned.active],
                    "standby": [*assigned.standbys],
                    "warmup": [*assigned.warmups],
                }
                found += [duty for duty, nodes in duties.items() if node_id in nodes and duty not in found]
        return found

    def _run(self) -> None:
        while not self._ended.is_set():
            message = self._listener.get_message(ignore_subscribe_messages=True, timeout=0.1)
            if message is None:
                continue
            kind, _, document = message["data"].partition(b"\n")
            application = self._demo.ready["application_id"]
            if kind == b"assignment":
                self.heard.append(Assignment.decode(document, application_id=application, where="channel"))
            elif kind == b"change":
                self.heard.append(AssignmentChange.decode(document, application_id=application, where="channel"))
