"""The base that a store starts from, and the changelogs that it reads ahead of their commits."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tests.support.checkpoint import bytes as spark

from understudy_node.checkpoint.files import LocalFiles
from understudy_node.checkpoint.logs import parse_commit, parse_offsets
from understudy_node.follow.history import CommitRecord
from understudy_node.replica.chosen_files import BaseChoice, ChangelogReader, ReadChangelog, RewrittenError
from understudy_node.replica.replica_context import StorePlace, Surroundings
from understudy_shared.base.errors import VanishedError
from understudy_shared.base.words import ApplicationId, Lineage, TaskId

DIRECTORY = "state/0/0"


def record(version: int, committed_at_ns: int = 0) -> CommitRecord:
    commit, offsets = parse_commit(spark.commit(0), version - 1), parse_offsets(spark.offsets(), 0)
    return CommitRecord(version, commit, offsets, committed_at_ns)


Families = dict[str, int]
ONE: Families = {"seen": 0}
TWO: Families = {"seen": 0, "mood": 1}


def write(folder: Path, version: int, families: Families, *, times_ns: tuple[int, int]) -> None:
    """A snapshot and a changelog of one version, written at these times."""
    (folder / f"{version}.zip").write_bytes(spark.snapshot_zip(families=families))
    (folder / f"{version}.changelog").touch()
    for name, at_ns in zip((f"{version}.zip", f"{version}.changelog"), times_ns, strict=True):
        os.utime(folder / name, ns=(at_ns, at_ns))


def search(
    folder: Path, target: int, *, above: int = 0, has_families: bool = True, committed_at_ns: int = 0
) -> tuple[int | None, bool]:
    """The version of the snapshot that is chosen, and whether a stale one was met; each commit is of that time."""
    task = TaskId(ApplicationId("a"), 0, 0)
    place = StorePlace(task, Lineage("l"), "default", DIRECTORY, 0, lambda record: True, has_families=has_families)
    history: Any = SimpleNamespace(
        record=lambda version: record(version, committed_at_ns) if version else None, nearest=record
    )
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
    assert search(tmp_path, 5, committed_at_ns=1_000) == (5, False), "the batch may begin in the same tick"
    assert search(tmp_path, 5, committed_at_ns=1_001) == (1, True), "a rewind took it back: the batch before is newer"


def test_a_damaged_snapshot_older_than_its_changelog_stays_out(tmp_path: Path, folder: Path) -> None:
    write(folder, 1, ONE, times_ns=BEFORE)
    write(folder, 5, TWO, times_ns=BEFORE)
    (folder / "5.zip").write_bytes(b"")
    os.utime(folder / "5.zip", ns=(1_000, 1_000))
    assert search(tmp_path, 5) == (1, True)


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

    def record(self, version: int, unique_id: str | None) -> CommitRecord:
        ids = None if unique_id is None else {"0": [[unique_id]]}
        commit = parse_commit(spark.commit(0, ids), version - 1)
        return CommitRecord(version, commit, parse_offsets(spark.offsets(), version - 1), 0)

    def write(self, name: str, *, value: bytes = b"\x00v", cut: int | None = None) -> None:
        """Write a changelog, or its beginning; the directory's time moves on, however coarse the clock of the disk."""
        content = spark.lz4(spark.utf("v3") + spark.lineage([]) + spark.plain([(b"\x00k", value)]))
        (self.root / DIRECTORY / name).write_bytes(content[:cut])
        self.ticks += 1
        os.utime(self.root / DIRECTORY, ns=(self.ticks, self.ticks))

    def look(self, *, after: int = 1) -> str | None:
        """The name that was read ahead of the commit after that version."""
        for _ in self.reader.read_ahead(self.record(after, FIRST)):
            pass
        ahead = self.reader._ahead
        return None if ahead is None else ahead.name

    def read(self, version: int, unique_id: str | None) -> ReadChangelog | None:
        """The changelog of a committed version; without an id in format v1."""
        reading = self.reader.read(self.record(version, unique_id))
        while True:
            try:
                next(reading)
            except StopIteration as done:
                found: ReadChangelog | None = done.value
                return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


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


def test_a_changelog_that_was_incomplete_is_tried_again_though_the_directory_is_as_it_was(world: World) -> None:
    world.write(f"2_{SECOND}.changelog", cut=30)
    before = (world.root / DIRECTORY).stat().st_mtime_ns
    assert world.look() is None
    world.write(f"2_{SECOND}.changelog")
    os.utime(world.root / DIRECTORY, ns=(before, before))
    assert world.look() == f"2_{SECOND}.changelog"


def test_what_was_read_ahead_is_used_only_if_it_is_still_that_file_after_the_commit(world: World) -> None:
    world.write(f"2_{SECOND}.changelog")
    assert world.look() is not None
    world.write(f"2_{SECOND}.changelog", value=b"\x00another")
    read = world.read(2, SECOND)
    assert read is not None
    assert read.changes == {b"\x00k": b"\x00another"}


def test_a_committed_changelog_that_is_rewritten_while_it_is_read_is_not_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, read = f"2_{SECOND}.changelog", world.files.read
    world.write(name)

    def rewriting(path: str, *limits: int) -> bytes:
        content = read(path, *limits)
        world.write(name, value=b"\x00another")
        return content

    monkeypatch.setattr(world.files, "read", rewriting)
    with pytest.raises(VanishedError, match="rewritten while it was read"):
        world.read(2, SECOND)


@pytest.mark.parametrize(("unique_id", "is_noticed"), [(SECOND, False), (None, True)])
def test_only_what_another_attempt_can_overwrite_is_looked_at_again_after_it_was_applied(
    world: World, unique_id: str | None, is_noticed: bool
) -> None:
    name = "2.changelog" if unique_id is None else f"2_{unique_id}.changelog"
    world.write(name)
    if unique_id is None:  # format v1 has no lineage
        (world.root / DIRECTORY / name).write_bytes(spark.lz4(spark.plain([(b"\x00k", b"\x00v")])))
    read = world.read(2, unique_id)
    assert read is not None
    assert (read.lineage is None) == is_noticed
    world.reader.applied(read)
    world.reader.check_last_applied()
    world.write(name, value=b"\x00another")
    if is_noticed:
        with pytest.raises(RewrittenError):
            world.reader.check_last_applied()
    else:
        world.reader.check_last_applied()
