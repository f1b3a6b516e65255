"""Events of a checkpoint's logs: which ones are news, and what becomes of a log that goes and comes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.followed_node import followed_node, wait_to_hold
from tests.support.spark.queries import wait_until

from understudy_node.checkpoint.files import LocalFiles
from understudy_node.follow.poll_loop import LogWatch, file_system_of, log_watch

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

    def __init__(self, root: Path) -> None:
        self.root = root
        self.news = threading.Event()
        for folder in ("commits", "offsets"):
            (root / folder).mkdir()
        watch = log_watch(LocalFiles(root), self.news.set)
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

    for folder in ("commits", "offsets"):
        (tmp_path / folder).mkdir()
    watch = LogWatch(tmp_path, fail)
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
