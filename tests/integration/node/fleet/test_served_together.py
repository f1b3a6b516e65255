"""Several checkpoints in one process: each answers as a process of its own would, and none hurts another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.checkpoint.storage_faults import PausableFiles
from tests.support.cluster.served_fleet import ServedFleet, served_fleet, write_applications
from tests.support.cluster.served_node import served_node
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_node.fleet import application as served
from understudy_node.settings import NodeSettings
from understudy_shared.base.errors import UnderstudyError


def checkpoint(path: Path, *versions: int) -> Path:
    HandmadeCheckpoint(path).create().add(*(versions or (1, 2)))
    return path


def settings(tmp_path: Path, **given: Any) -> NodeSettings:
    return NodeSettings(data_dir=tmp_path / "data", lag_refresh_ms=50, memory_limit_bytes=0, **given)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of two applications."""
    return write_applications(
        tmp_path / "applications.toml", orders=checkpoint(tmp_path / "a"), clicks=checkpoint(tmp_path / "b", 1, 2, 3)
    )


@pytest.fixture
def fleet(tmp_path: Path, file: Path) -> Iterator[ServedFleet]:
    with served_fleet(settings(tmp_path, applications=file)) as served:
        served.wait_for(orders="serving", clicks="serving")
        yield served


def row(document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an answer that do not depend on the process that gave it."""
    return {name: document.get(name) for name in ("found", "key", "value")}


def test_each_answers_as_a_process_of_its_own(tmp_path: Path, fleet: ServedFleet) -> None:
    for application, place in (("orders", "a"), ("clicks", "b")):
        with served_node(tmp_path / place, tmp_path / f"alone-{place}") as alone:
            wait_until(lambda: alone.get("/readyz").status == 200, what="the node alone")
            for word in (*WORDS, "none"):
                here = fleet.get(f"/v1/applications/{application}/stores/op0/keys/{word}")
                there = alone.get(f"/v1/stores/op0/keys/{word}")
                assert here.status_code == there.status
                assert row(here.json()) == row(there.body)
    ambiguous = fleet.get(f"/v1/stores/op0/keys/{WORDS[0]}")
    assert (ambiguous.status_code, ambiguous.json()["applications"]) == (409, ["clicks", "orders"])
    assert sorted(each["application"] for each in fleet.get("/v1/stores").json()["stores"]) == ["clicks", "orders"]
    assert fleet.get("/readyz").status_code == 200
    metrics = fleet.get("/metrics").text
    assert metrics.count("\nunderstudy_cache_capacity_bytes ") == 1
    assert 'understudy_end_offset_position{application="clicks"} 3.0' in metrics
    assert 'understudy_node_degraded{cause="memory"} 0.0' in metrics
    assert metrics.count('cause="memory"') == 1


def test_applications_come_and_go_and_an_invalid_file_changes_nothing(
    tmp_path: Path, file: Path, fleet: ServedFleet
) -> None:
    write_applications(file, orders=tmp_path / "a", more=checkpoint(tmp_path / "c"))
    fleet.wait_for(orders="serving", more="serving")
    gone = fleet.get(f"/v1/applications/clicks/stores/op0/keys/{WORDS[0]}")
    assert (gone.status_code, gone.json()["type"].rpartition("/")[2]) == (404, "unknown-application")
    wait_until(lambda: is_free(tmp_path / "data" / "clicks"), what="its folder for another process")
    file.write_text("[[applications]]\nid = 'orders'\n")
    wait_until(lambda: "checkpoint is missing" in str(fleet.get("/readyz").json()["degraded"]), what="the refusal")
    assert 'understudy_node_degraded{cause="applications-file"} 1.0' in fleet.get("/metrics").text
    assert fleet.states() == {"orders": "serving", "more": "serving"}
    write_applications(file, sales=tmp_path / "a", more=tmp_path / "c")  # the same checkpoint under another id
    fleet.wait_for(sales="serving", more="serving")
    assert fleet.get("/readyz").json() == {"ready": True, "reasons": [], "degraded": None}


def is_free(folder: Path) -> bool:
    """Whether another node may have a data folder."""
    try:
        with served_node(folder.parent.parent / "a", folder):
            return True
    except UnderstudyError:
        return False


def test_what_is_wrong_with_one_is_said_and_the_others_do_not_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setattr(served, "HANGS_AFTER_MS", 50)
    broken, hangs = tmp_path / "broken", checkpoint(tmp_path / "hangs")
    (broken / "commits").mkdir(parents=True)
    (broken / "metadata").write_text("not a checkpoint")
    paused = PausableFiles(hangs)
    paused.pause()

    def open_files(location: str) -> CheckpointFiles:
        return paused if location == str(hangs) else LocalFiles(location)

    write_applications(
        file, orders=tmp_path / "a", missing=tmp_path / "missing", broken=broken, hangs=hangs, is_file=file
    )
    with served_fleet(settings(tmp_path, applications=file), open_files=open_files) as fleet:
        fleet.wait_for(orders="serving", missing="waiting", broken="failed", hangs="failed", is_file="failed")
        assert fleet.get("/readyz").status_code == 200
        assert "has not answered for" in fleet.application("hangs")["reason"]
        assert "the folder does not exist" in fleet.application("missing")["reason"]
        refused = fleet.get("/v1/applications/broken/stores/op0/keys/x")
        assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (503, "not-initialised")
        paused.resume()
        checkpoint(tmp_path / "missing")
        fleet.wait_for(orders="serving", missing="serving", broken="failed", hangs="serving", is_file="failed")
        paused.pause()
        HandmadeCheckpoint(tmp_path / "a").add(3)
        wait_until(lambda: fleet.application("orders")["end_offset_position"] == 3, what="others that follow")
        write_applications(file, orders=tmp_path / "a")  # one that hangs is removed
        wait_until(lambda: "hangs" not in fleet.states(), what="its end")
        paused.resume()


def test_reads_while_an_application_is_removed_have_an_answer_or_a_clean_problem(
    tmp_path: Path, file: Path, fleet: ServedFleet
) -> None:
    seen: set[int] = set()
    stop = threading.Event()

    def read() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{fleet.port}") as client:
            while not stop.is_set():
                seen.add(client.get(f"/v1/applications/clicks/stores/op0/keys/{WORDS[0]}").status_code)
                seen.add(client.get("/v1/applications/clicks/stores/op0/scan").status_code)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    wait_until(lambda: 200 in seen, what="readers that read")
    write_applications(file, orders=tmp_path / "a")
    fleet.wait_for(orders="serving")
    wait_until(lambda: 404 in seen, what="readers that see that it is gone")
    stop.set()
    for reader in readers:
        reader.join()
    assert {200, 404} <= seen <= {200, 404, 503}
