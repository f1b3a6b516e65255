"""Which snapshots of format v1 count as a dead attempt's: those that are older than the changelog of their version, but
for those with other column families than the one before, which every attempt writes first.
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
from understudy_node.replica.chosen_files import BaseChoice
from understudy_node.replica.replica_context import StorePlace
from understudy_shared.base.words import ApplicationId, Lineage, TaskId

DIRECTORY = "state/0/0"


def record(version: int) -> CommitRecord:
    return CommitRecord(version, parse_commit(spark.commit(0), version - 1), parse_offsets(spark.offsets(), 0), 0)


Families = dict[str, int]
ONE: Families = {"seen": 0}
TWO: Families = {"seen": 0, "mood": 1}


def write(folder: Path, version: int, families: Families, *, times_ns: tuple[int, int]) -> None:
    """A snapshot and a changelog of one version, written at these times."""
    (folder / f"{version}.zip").write_bytes(spark.snapshot_zip(families=families))
    (folder / f"{version}.changelog").touch()
    for name, at_ns in zip((f"{version}.zip", f"{version}.changelog"), times_ns, strict=True):
        os.utime(folder / name, ns=(at_ns, at_ns))


def search(folder: Path, target: int, *, above: int = 0, has_families: bool = True) -> tuple[int | None, bool]:
    """The version of the snapshot that is chosen, and whether a stale one was met."""
    task = TaskId(ApplicationId("a"), 0, 0)
    place = StorePlace(task, Lineage("l"), "default", DIRECTORY, 0, lambda record: True, has_families=has_families)
    history: Any = SimpleNamespace(record=record, nearest=record)
    found = BaseChoice(place, LocalFiles(folder), history).snapshot(target, above=above)
    return None if found.chosen is None else found.chosen.version, found.met_stale


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / DIRECTORY).mkdir(parents=True)
    return tmp_path / DIRECTORY


BEFORE, AFTER = (1_000, 2_000), (2_000, 1_000)
"""The snapshot written before its changelog, and after it."""


def test_a_snapshot_older_than_its_changelog_with_the_families_of_the_one_before_it_is_a_dead_attempt_s(
    tmp_path: Path, folder: Path
) -> None:
    write(folder, 1, ONE, times_ns=BEFORE)
    write(folder, 5, ONE, times_ns=BEFORE)
    assert search(tmp_path, 5) == (1, True)
    assert search(tmp_path, 5, above=1) == (None, True)


@pytest.mark.parametrize(("old", "new"), [(ONE, TWO), (TWO, ONE), (ONE, {"seen": 0, "mood": 2})])
def test_a_snapshot_that_brings_or_drops_a_family_is_used_though_spark_wrote_it_before_its_changelog(
    tmp_path: Path, folder: Path, old: Families, new: Families
) -> None:
    write(folder, 1, old, times_ns=BEFORE)
    write(folder, 5, new, times_ns=BEFORE)
    assert search(tmp_path, 5) == (5, False)
    assert search(tmp_path, 5, above=4) == (5, False), "compared with one below the range that is searched"


def test_a_damaged_snapshot_older_than_its_changelog_stays_out(tmp_path: Path, folder: Path) -> None:
    write(folder, 1, ONE, times_ns=BEFORE)
    write(folder, 5, TWO, times_ns=BEFORE)
    (folder / "5.zip").write_bytes(b"")
    os.utime(folder / "5.zip", ns=(1_000, 1_000))
    assert search(tmp_path, 5) == (1, True)
