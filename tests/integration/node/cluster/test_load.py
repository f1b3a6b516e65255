"""The load that a node reports: the size of its replicas, its reads, and the load of other applications there."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, held, wait_to_hold

from understudy_node.cluster.heartbeat import MEASURE_AGAIN_MS, LoadMeter, ProcessLoad
from understudy_node.node import Node
from understudy_shared.base.words import LagInfo, Role


def read(node: Node, times: int) -> None:
    node.measures.lags.read(LagInfo(1, 1, 0, 0), times)


def test_a_node_reports_its_replicas_its_reads_and_what_others_bear(tmp_path: Path) -> None:
    HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    duties = {"0_0": Role.ACTIVE, "0_1": Role.STANDBY}
    process = ProcessLoad()
    with followed_node(tmp_path / "checkpoint", tmp_path / "data", duties=duties) as node:
        meter = LoadMeter(node, process)
        assert meter.read(0.0).operator_bytes == {}
        wait_to_hold(node, *duties, version=2)
        sizes = [replica.stored_bytes for replica in held(node).values()]
        load = meter.read(1.0)
        assert load.operator_bytes == {"0": round(sum(size or 0 for size in sizes) / 2)}
        assert load.operator_bytes["0"] > 0
        read(node, 90)
        assert meter.read(MEASURE_AGAIN_MS - 1).reads_per_s == 0, "it was measured anew too early"
        load = meter.read(MEASURE_AGAIN_MS)
        assert load.reads_per_s == 90_000 // MEASURE_AGAIN_MS
        assert (load.others_bytes, load.others_reads_per_s) == (0, 0)
        others = process.of_others("clicks")
        assert others == (2 * load.operator_bytes["0"], load.reads_per_s)
        meter.stop()
        assert process.of_others("clicks") == (0, 0)
