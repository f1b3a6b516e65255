"""What wakes the polling thread and what it notices: events of logs, new schemas, whether a query still commits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, wait_to_hold
from tests.support.spark.queries import wait_until
from tests.unit.node.checkpoint.test_state_variables import KINDS, checkpoint

from understudy_node.checkpoint.description import CheckpointDescription
from understudy_node.checkpoint.files import FileStat, LocalFiles, file_system_of
from understudy_node.follow.end import End
from understudy_node.follow.poll_loop import IDLE_AFTER_MS, Cadence, LogWatch, NewSchemas, log_watch
from understudy_shared.base.errors import CheckpointError
from understudy_shared.bus.messages import QueryProgress

MOUNTS = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:25 / /mnt rw - nfs4 server:/export rw
31 30 0:26 / /mnt/local rw shared:2 master:1 - xfs /dev/b rw
32 22 0:27 / /with\\040spàce rw - tmpfs tmpfs rw
33 22 0:28 / /over rw - ext4 /dev/c rw
34 22 0:29 / /over rw - fuse.s3 bucket rw
"""
LIMIT_S = 30.0
LONG_MS = 3_600_000


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/checkpoints/a", "ext4"),
        ("/mnt/a", "nfs4"),
        ("/mnt", "nfs4"),
        ("/mnt/local/a", "xfs"),
        ("/mntother", "ext4"),
        ("/with spàce/a", "tmpfs"),
        ("/over/a", "fuse.s3"),
    ],
)
def test_a_path_is_on_the_file_system_that_is_mounted_last_and_deepest(path: str, found: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == found


class World:
    """A watch over a checkpoint, and the news of it."""

    def __init__(self, root: Path, news: Callable[[], None] | None = None) -> None:
        self.root = root
        self.news = threading.Event()
        for folder in ("commits", "offsets"):
            (root / folder).mkdir()
        watch = log_watch(LocalFiles(root), news or self.news.set)
        assert isinstance(watch, LogWatch), "temporary files are on a local disk"
        self.watch = watch

    def is_news(self) -> bool:
        found = self.news.wait(LIMIT_S)
        self.news.clear()
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.watch.start()
    yield made
    made.watch.stop(timeout_s=LIMIT_S)


def test_a_commit_and_a_begun_batch_are_news_and_their_hidden_temporary_files_are_not(world: World) -> None:
    for folder in ("commits", "offsets"):
        hidden = world.root / folder / ".0.tmp"
        hidden.write_text("v1")
        assert not world.news.wait(0.05)
        hidden.rename(world.root / folder / "0")
        assert world.is_news()
    (world.root / "commits/1").write_text("v1")
    assert world.is_news()


def test_a_log_that_is_made_anew_is_watched_once_it_is_there(world: World) -> None:
    assert world.watch.is_on
    (world.root / "commits").rename(world.root / "old")
    assert world.is_news()
    wait_until(lambda: not world.watch.is_on, what="the end of the watch", limit_s=LIMIT_S)
    world.watch.renew()
    assert not world.watch.is_on
    (world.root / "commits").mkdir()
    world.watch.renew()
    assert world.watch.is_on
    (world.root / "commits/0").write_text("v1")
    assert world.is_news()
    world.news.clear()
    (world.root / "old/1").write_text("v1")
    assert not world.news.wait(0.05)


def test_a_watch_that_fails_says_so_and_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a bug")

    watch = World(tmp_path, fail).watch
    watch.start()
    assert watch.is_on
    with caplog.at_level(logging.ERROR):
        (tmp_path / "commits" / "0").write_bytes(b"v1")
        wait_until(lambda: not watch.is_on, what="the end of the watch")
    watch.renew()
    assert not watch.is_on
    watch.stop(timeout_s=LIMIT_S)
    assert "no longer watched" in caplog.text
    assert "a bug" in caplog.text


def test_a_node_shows_a_commit_though_its_next_poll_is_far_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "checkpoint").create().add(1)
    with followed_node(checkpoint.path, tmp_path / "data", lag_refresh_ms=LONG_MS) as node:
        wait_to_hold(node, "0_0", "0_1", version=1)
        monkeypatch.setattr("understudy_node.node.WATCHED_POLL_MS", LONG_MS)
        monkeypatch.setattr("understudy_node.node.POLL_FLOOR_LOCAL_MS", LONG_MS)
        monkeypatch.setattr("understudy_node.replica.workers.PREFETCH_FLOOR_MS", LONG_MS)
        node.wake()
        for version in (2, 3):
            checkpoint.add(version)
            wait_to_hold(node, "0_0", "0_1", version=version)


FILE = FileStat(1, 1, 1)


def end(moved_ms: float | None) -> End:
    return End(5, FILE, FILE, confirmed_ms=0.0, moved_ms=moved_ms)


def test_nothing_is_said_of_a_query_before_one_of_its_commits_was_seen() -> None:
    cadence = Cadence()
    cadence.saw(end(None), now_ms=1_000)
    assert cadence.state(1_001, confirmed=True) == "waiting"
    assert cadence.since_commit_ms(1_001) is None
    assert cadence.quiet_ms(1_500) == 500


def test_a_query_is_idle_after_a_minute_without_a_commit_and_this_is_reported_once() -> None:
    cadence = Cadence()
    cadence.saw(end(1_000), now_ms=1_000)
    assert cadence.state(1_000 + IDLE_AFTER_MS, confirmed=True) == "committing"
    later_ms = 1_001 + IDLE_AFTER_MS
    assert cadence.turned_idle(later_ms)
    assert cadence.state(later_ms, confirmed=True) == "idle"
    assert not cadence.turned_idle(later_ms + 1)


def test_a_batch_is_as_old_as_its_first_sight_until_it_is_committed_or_another_begins() -> None:
    cadence = Cadence()
    assert cadence.progress(0) == QueryProgress()
    cadence.saw_batch(5, has_begun=True, now_ms=1_000)
    cadence.saw_batch(5, has_begun=True, now_ms=4_000)
    assert cadence.progress(6_000).batch_ms == 5_000
    cadence.saw_batch(6, has_begun=True, now_ms=7_000)
    assert cadence.progress(7_500).batch_ms == 500
    cadence.saw_batch(7, has_begun=False, now_ms=8_000)
    assert cadence.progress(8_000).batch_ms is None


class Counted(LocalFiles):
    """Local files that count the looks at them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.looks = 0
        self.is_away = False

    def stats(self, paths: Sequence[str]) -> list[FileStat | None]:
        if self.is_away:
            raise CheckpointError("the storage is away")
        self.looks += len(paths)
        return super().stats(paths)

    def list(self, path: str) -> list[str] | None:
        raise AssertionError("nothing is listed")


@pytest.fixture
def found(tmp_path: Path) -> CheckpointDescription:
    return checkpoint(tmp_path, {0: KINDS})


def _write(root: Path, batch: int) -> None:
    (root / f"state/0/_metadata/v2/{batch}").write_bytes(b"")


def test_a_commit_costs_a_look_for_each_operator_and_no_commit_none(
    found: CheckpointDescription, tmp_path: Path
) -> None:
    files = Counted(tmp_path)
    schemas = NewSchemas(files)
    schemas.were_read(found)
    for batch in (0, 0, 1, 1, 2, 2):
        assert not schemas.to_read(found, batch)
    assert files.looks == 2


def test_what_could_not_be_read_is_tried_again_at_the_next_commit_and_not_before(
    found: CheckpointDescription, tmp_path: Path
) -> None:
    files = Counted(tmp_path)
    schemas = NewSchemas(files)
    schemas.were_read(found)
    _write(tmp_path, 1)
    assert [schemas.to_read(found, batch) for batch in (1, 1, 2, 2)] == [True, False, True, False]
    assert found.last_commit is not None
    schemas.were_read(replace(found, last_commit=replace(found.last_commit, batch_id=2)))
    assert not schemas.to_read(found, 3)


def test_batches_that_the_storage_did_not_tell_of_are_checked_again(
    found: CheckpointDescription, tmp_path: Path
) -> None:
    """A schema comes with the first batch of a run and with no other."""
    files = Counted(tmp_path)
    schemas = NewSchemas(files)
    schemas.were_read(found)
    _write(tmp_path, 1)
    files.is_away = True
    with pytest.raises(CheckpointError):
        schemas.to_read(found, 1)
    files.is_away = False
    assert schemas.to_read(found, 1)
    assert schemas.must_read
