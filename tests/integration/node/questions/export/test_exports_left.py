"""Readers that leave an export, or stop reading it, cost nothing when they are gone (Q12)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import VALUE, HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.oracle.exported import export
from tests.support.services.raw_http import RawClient, resident_bytes
from tests.support.spark.queries import wait_until

from understudy_node.questions.export import service as node_exports
from understudy_shared.server.connection_limits import ConnectionLimits
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, StringType, StructType
from understudy_shared.spark.unsafe_row import compile_row_encoder

MIB = 1 << 20
WORD_BYTES, WORDS = 16 * 1024, 768
"""More than the buffers of a connection and of a few parts hold."""

AT_ONCE = 16
REQUEST = b"GET /v1/stores/op0/export?format=%b HTTP/1.1\r\nhost: x\r\n\r\n"
NO_FAREWELL = struct.pack("ii", 1, 0)
LEAVERS = [pytest.param(1_000, id="1000", marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.brief)]


class LongWords(HandmadeCheckpoint):
    """Keys of some kilobytes."""

    def _records(self, version: int, partition: int) -> list[spark.Record]:
        codec, value = KeyCodec(StructType((Field("word", StringType()),))), compile_row_encoder(VALUE)
        words = [f"{number:06}" + "x" * WORD_BYTES for number in range(WORDS)]
        return [
            (codec.encode((word,)), value((1, version)))
            for word in words
            if codec.partition((word,), self.partitions) == partition
        ]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("left")
    words = LongWords(folder / "words", partitions=3).create().add(1)
    limits = ConnectionLimits(unread_timeout_ms=300)
    with served_node(
        words.path, folder / "data", limits=limits, max_exports_in_flight=AT_ONCE, max_key_bytes=MIB
    ) as served:
        served.wait_for_version(1, partitions=3)
        yield served


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_exports, "PART_BYTES", 256 * 1024)


def in_flight(node: ServedNode) -> float:
    return metric(node, "understudy_exports_in_flight ")


def metric(node: ServedNode, name: str) -> float:
    return sum(float(line.split()[-1]) for line in node.text("/metrics").splitlines() if line.startswith(name))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # a path for each would open one


@pytest.mark.parametrize("leavers", LEAVERS)
def test_readers_that_leave_in_the_middle_give_everything_back(leavers: int, node: ServedNode) -> None:
    assert len(export(node).rows) == WORDS
    files, memory = descriptors(), resident_bytes()
    before = metric(node, 'understudy_requests_total{op="export",outcome="cancelled"')
    for number in range(leavers):
        with RawClient(node.port, receive_buffer_bytes=4_096) as client:
            client.send(REQUEST % (b"ndjson" if number % 2 else b"csv"))
            assert client.socket.recv(100).startswith(b"HTTP/1.1 200")
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_FAREWELL)
        if number % AT_ONCE == 0:
            wait_until(lambda: in_flight(node) == 0, what="free places")
    wait_until(lambda: in_flight(node) == 0, what="the end of all exports")
    wait_until(lambda: descriptors() <= files, what="the descriptors to be back")
    assert metric(node, 'understudy_requests_total{op="export",outcome="cancelled"') > before
    assert resident_bytes() - memory < 64 * MIB
    assert len(export(node).rows) == WORDS


def test_readers_that_stop_reading_are_dropped_and_hold_bounded_memory_meanwhile(node: ServedNode) -> None:
    files, memory = descriptors(), resident_bytes()
    unread = 'understudy_connections_refused_total{reason="unread"}'
    before = metric(node, unread)
    with ExitStack() as stack:
        for _ in range(AT_ONCE):
            client = stack.enter_context(RawClient(node.port, receive_buffer_bytes=4_096))
            client.send(REQUEST % b"ndjson")
        wait_until(lambda: metric(node, unread) == before + AT_ONCE, what="each to be dropped")
        assert resident_bytes() - memory < 64 * MIB
        wait_until(lambda: in_flight(node) == 0, what="free places")
    wait_until(lambda: descriptors() <= files, what="the descriptors to be back")
    assert len(export(node).rows) == WORDS
