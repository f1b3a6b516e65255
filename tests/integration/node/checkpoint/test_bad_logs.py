"""Damaged logs and metadata: refused by name at the start, and survived with the last good version while following."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.checkpoint import bytes as spark
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import served_node
from tests.support.services.startup_refusals import refusal_to_serve
from tests.support.spark.counting_query import WORDS, watched
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.logs import MAX_LOG_BYTES
from understudy_shared.base.errors import CheckpointError, CorruptFileError, UnsupportedError

Harm = Callable[[bytes], bytes]


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def empty(_: bytes) -> bytes:
    return b""


def zeros(data: bytes) -> bytes:
    return bytes(len(data))


def too_large(data: bytes) -> bytes:
    return data + b" " * (MAX_LOG_BYTES + 1 - len(data))


def newer(data: bytes) -> bytes:
    return data.replace(b"v1\n", b"v9\n", 1)


def other_provider(data: bytes) -> bytes:
    return data.replace(spark.HDFS.encode(), b"com.example.MyStateStoreProvider")


@pytest.mark.parametrize(
    ("path", "harm", "kind", "says"),
    [
        ("commits/2", half, CorruptFileError, "Not JSON"),
        ("metadata", too_large, CheckpointError, "The file has 16777217 bytes"),
        *(
            pytest.param(path, too_large, CheckpointError, "The file has 16777217 bytes", marks=pytest.mark.full)
            for path in ("commits/2", "offsets/2", "state/0/0/_metadata/schema", "state/0/_metadata/metadata")
        ),
        pytest.param("offsets/2", empty, CorruptFileError, "The file is empty: it has 0 bytes", marks=pytest.mark.full),
        pytest.param("offsets/2", half, CorruptFileError, "Not JSON", marks=pytest.mark.full),
        pytest.param("offsets/2", newer, UnsupportedError, "v9", marks=pytest.mark.full),
        ("offsets/2", other_provider, UnsupportedError, "com.example.MyStateStoreProvider"),
        ("state/0/0/_metadata/schema", half, CorruptFileError, ""),
        pytest.param("state/0/_metadata/metadata", newer, UnsupportedError, "v9", marks=pytest.mark.full),
    ],
)
def test_a_damaged_log_or_an_unsupported_checkpoint_is_refused_by_name_before_the_port_opens(
    tmp_path: Path, path: str, harm: Harm, kind: type[Exception], says: str
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2, 3)
    intact = (checkpoint.path / path).read_bytes()
    damaged = harm(intact)
    assert damaged != intact
    checkpoint.write(path, damaged)
    error = refusal_to_serve(checkpoint.path, tmp_path / "data")
    assert isinstance(error, kind), error
    assert says in error.what
    by_file = harm in (half, empty, newer)
    assert (path if by_file else "") in error.where
    # Nothing was left behind that would keep a good checkpoint from being served.
    checkpoint.write(path, intact)
    with served_node(checkpoint.path, tmp_path / "data") as served:
        served.wait_for_version(3)


@pytest.mark.parametrize(
    "harm",
    [empty, zeros, pytest.param(newer, marks=pytest.mark.full)],
    ids=lambda harm: harm.__name__,
)
@pytest.mark.parametrize("log", ["commits", "offsets"])
def test_a_damaged_log_entry_leaves_the_version_before_it_on_show_until_it_is_repaired(
    tmp_path: Path, log: str, harm: Harm
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    intact = spark.commit() if log == "commits" else spark.offsets(provider=spark.HDFS)
    with served_node(checkpoint.path, tmp_path / "data") as served, watched(served):
        served.wait_for_version(2)
        checkpoint.write_state(3)
        checkpoint.write(f"{log}/2", harm(intact))
        checkpoint.commit(3) if log == "offsets" else None
        wait_until(lambda: f"{log}/2" in str([part["error"] for part in served.partitions()]), what="the error")
        answer = served.look_up([WORDS[0]])
        assert (answer.status, answer.body["version"]) == (200, 2)
        checkpoint.add(4)
        wait_until(lambda: {part["offset_lag"] for part in served.partitions()} == {2}, what="the lag to grow")
        assert served.look_up([WORDS[0]], bounds="max_lag=0").problem == "no-acceptable-replica"
        checkpoint.write(f"{log}/2", intact)
        served.wait_for_version(4)
        assert {part["error"] for part in served.partitions()} == {None}


def test_a_checkpoint_that_goes_away_is_answered_for_with_unknown_lag(tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1, 2)
    away = tmp_path / "away"
    with served_node(checkpoint.path, tmp_path / "data") as served, watched(served):
        served.wait_for_version(2)
        checkpoint.path.rename(away)
        wait_until(lambda: served.lag()["end_confirmed"] is False, what="doubt")
        answer = served.look_up([WORDS[0]])
        assert isinstance(answer.body["lag"], dict)
        assert (answer.status, answer.body["version"], answer.body["lag"]["offset_lag"]) == (200, 2, None)
        assert served.look_up([WORDS[0]], bounds="max_lag=10").problem == "no-acceptable-replica"
        wait_until(lambda: "error" in served.events(), what="the event")
        assert "the checkpoint is gone" in str(served.lag()["events"])
        away.rename(checkpoint.path)
        checkpoint.add(3)
        served.wait_for_version(3)
