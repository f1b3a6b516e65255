"""Reading the next version's changelog ahead of its commit: what a look for it costs, and what it finds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.files import LocalFiles
from understudy_node.checkpoint.logs import parse_commit, parse_offsets
from understudy_node.follow.history import CommitRecord
from understudy_node.replica.changelog_reader import ChangelogReader
from understudy_node.replica.surroundings import StorePlace, Surroundings
from understudy_shared.words import ApplicationId, Lineage, TaskId

DIRECTORY = "state/0/0"
FIRST, SECOND = str(UUID(int=1)), str(UUID(int=2))


class CountingFiles(LocalFiles):
    """Counts listings."""

    listed = 0

    def list(self, path: str) -> list[str] | None:
        self.listed += 1
        return super().list(path)


class World:
    """One store of a checkpoint in format v2, at version 1."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = CountingFiles(root)
        (root / DIRECTORY).mkdir(parents=True)
        self.ticks = 0
        place = StorePlace(TaskId(ApplicationId("a"), 0, 0), Lineage("l"), "default", DIRECTORY, 0, lambda record: True)
        unused: Any = None
        around = Surroundings(self.files, history=unused, disk=unused, cache=unused, overlay_max_bytes=0)
        self.reader = ChangelogReader(place, around)

    def record(self, version: int, unique_id: str) -> CommitRecord:
        commit = parse_commit(spark.commit(0, {"0": [[unique_id]]}), version - 1)
        return CommitRecord(version, commit, parse_offsets(spark.offsets(), version - 1), 0)

    def write(self, name: str) -> None:
        """Write a changelog; the directory's time moves on, however coarse the clock of the disk."""
        (self.root / DIRECTORY / name).write_bytes(spark.lz4(spark.plain([(b"\x00k", b"\x00v")])))
        self.ticks += 1
        os.utime(self.root / DIRECTORY, ns=(self.ticks, self.ticks))

    def look(self) -> str | None:
        """The name that was read ahead."""
        for _ in self.reader.read_ahead(self.record(1, FIRST)):
            pass
        ahead = self.reader._ahead
        return None if ahead is None else ahead.name


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_looks_at_a_directory_that_did_not_change_list_it_once(world: World) -> None:
    world.write(f"1_{FIRST}.changelog")
    for _ in range(5):
        assert world.look() is None
    assert world.files.listed == 1


def test_a_changelog_that_arrives_between_two_looks_is_read_and_other_files_are_not(world: World) -> None:
    assert world.look() is None
    for other in (
        "2.changelog",
        f"20_{SECOND}.changelog",
        f"2_{SECOND}.zip",
        f".2_{SECOND}.changelog.tmp",
        "2_x.changelog",
    ):
        world.write(other)
        assert world.look() is None
    world.write(f"2_{SECOND}.changelog")
    assert world.look() == f"2_{SECOND}.changelog"
    listed = world.files.listed
    assert world.look() is not None
    assert world.files.listed == listed, "it was read already"


def test_of_two_attempts_none_is_read_ahead_until_one_is_alone(world: World) -> None:
    world.write(f"2_{FIRST}.changelog")
    world.write(f"2_{SECOND}.changelog")
    assert world.look() is None
    (world.root / DIRECTORY / f"2_{FIRST}.changelog").unlink()
    assert world.look() == f"2_{SECOND}.changelog"
