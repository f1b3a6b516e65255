"""Which snapshots of format v1 count as a dead attempt's: those that are older than the changelog of their version, but
for one that Spark always writes first.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.files import LocalFiles
from understudy_node.checkpoint.logs import parse_commit, parse_offsets
from understudy_node.follow.history import CommitRecord
from understudy_node.replica.base_choice import BaseChoice
from understudy_node.replica.surroundings import StorePlace, Surroundings
from understudy_shared.words import ApplicationId, Lineage, TaskId

DIRECTORY = "state/0/0"


def record(version: int) -> CommitRecord:
    return CommitRecord(version, parse_commit(spark.commit(0), version - 1), parse_offsets(spark.offsets(), 0), 0)


@pytest.mark.parametrize(
    ("version", "has_families", "is_stale"), [(1, False, True), (1, True, False), (2, False, True), (2, True, True)]
)
def test_a_snapshot_older_than_its_changelog_is_stale_unless_spark_writes_it_first_in_every_attempt(
    tmp_path: Path, version: int, has_families: bool, is_stale: bool
) -> None:
    folder = tmp_path / DIRECTORY
    folder.mkdir(parents=True)
    for written_ns, name in enumerate((f"{version}.zip", f"{version}.changelog"), 1_000):
        (folder / name).touch()
        os.utime(folder / name, ns=(written_ns, written_ns))
    task = TaskId(ApplicationId("a"), 0, 0)
    place = StorePlace(task, Lineage("l"), "default", DIRECTORY, 0, lambda record: True, has_families=has_families)
    history: Any = SimpleNamespace(record=record, nearest=record)
    unused: Any = None
    around = Surroundings(LocalFiles(tmp_path), history=history, disk=unused, cache=unused, overlay_max_bytes=0)
    search = BaseChoice(place, around).snapshot(version, above=0)
    assert (search.met_stale, search.chosen is None) == (is_stale, is_stale)
