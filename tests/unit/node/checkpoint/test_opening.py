"""Which locations are waited for, and that links of a rooted checkpoint lead nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.clock import ManualClock

from understudy_node.checkpoint.files import LocalFiles, RootedFiles
from understudy_node.checkpoint.opening import pause_s, wait_for_checkpoint
from understudy_shared.base.errors import CheckpointError, NotACheckpointError


class Clock(ManualClock):
    """Time that passes only while somebody sleeps."""

    def sleep(self, seconds: float) -> None:
        self.advance(seconds * 1000)


def test_a_checkpoint_that_comes_later_is_waited_for_with_words_that_come_less_and_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, folder = Clock(), tmp_path / "later"

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.monotonic_ms() > 3_600_000:
            (folder / "offsets").mkdir(parents=True, exist_ok=True)
            (folder / "metadata").write_text("{}")

    with caplog.at_level(logging.WARNING):
        wait_for_checkpoint(LocalFiles(folder), clock, limit_ms=None, sleep=sleep)
    said = [record.getMessage() for record in caplog.records]
    assert 5 < len(said) < 15
    assert all(str(folder) in each for each in said)


def test_remote_storage_is_asked_less_and_less_often() -> None:
    waits = [pause_s(1000.0 * waited_s, is_local=False) for waited_s in (0, 10, 100, 400, 3600)]
    assert waits == [0.25, 0.25, 1, 4, 5]
    assert pause_s(3_600_000, is_local=True) == 0.25


@pytest.mark.parametrize("limit_ms", [0, 5_000])
def test_the_wait_ends_when_its_limit_is_over(tmp_path: Path, limit_ms: int) -> None:
    clock = Clock()
    with pytest.raises(NotACheckpointError, match="there is no checkpoint"):
        wait_for_checkpoint(LocalFiles(tmp_path / "never"), clock, limit_ms=limit_ms, sleep=clock.sleep)
    assert clock.monotonic_ms() - limit_ms < 300


@pytest.mark.parametrize(
    "paths",
    [["part-0.parquet"], ["metadata"], ["metadata", "offsets/0"], ["offsets/0", "commits/0"], ["state/0/0/1.delta"]],
    ids=["table", "no-batch-yet", "checkpoint", "metadata-lost", "only-state"],
)
def test_what_is_there_is_not_waited_for(tmp_path: Path, paths: list[str]) -> None:
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    clock = Clock()
    wait_for_checkpoint(LocalFiles(tmp_path), clock, limit_ms=60_000, sleep=clock.sleep)
    assert clock.monotonic_ms() == 0


@pytest.mark.parametrize("paths", [["offsets"], ["commits", "offsets", ".metadata.tmp"], []])
def test_the_folders_of_a_query_that_starts_are_waited_for(tmp_path: Path, paths: list[str]) -> None:
    for path in paths:
        (tmp_path / path).mkdir()
    clock = Clock()
    with pytest.raises(NotACheckpointError):
        wait_for_checkpoint(LocalFiles(tmp_path), clock, limit_ms=1_000, sleep=clock.sleep)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root that is a symbolic link itself, with a checkpoint, and links below it that lead in and out."""
    real, secrets = tmp_path / "disk" / "checkpoints", tmp_path / "checkpoints-secret"
    for folder in (real / "orders" / "state", secrets):
        folder.mkdir(parents=True)
    (real / "orders" / "metadata").write_text("ours")
    (secrets / "metadata").write_text("secret")
    (real / "out").symlink_to(secrets)
    (real / "alias").symlink_to(real / "orders")
    (real / "orders" / "state" / "1.delta").symlink_to(secrets / "metadata")
    root = tmp_path / "root"
    root.symlink_to(real)
    return root


def test_what_stays_below_the_root_is_read_through_links_too(root: Path, tmp_path: Path) -> None:
    for name in ("orders", "alias"):
        files = RootedFiles(str(root), f"{root}/{name}")
        assert files.read("metadata") == b"ours"
        assert files.list("") is not None
        assert files.stat("absent") is None
        files.fetch("metadata", tmp_path / f"copy-{name}")
        assert (tmp_path / f"copy-{name}").read_text() == "ours"


CALLS: dict[str, Callable[[RootedFiles, str, Path], object]] = {
    "read": lambda files, path, _: files.read(path),
    "stat": lambda files, path, _: files.stat(path),
    "list": lambda files, path, _: files.list(path),
    "read all": lambda files, path, _: files.read_all([path]),
    "fetch": lambda files, path, folder: files.fetch(path, folder / "copy"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("location", "path"), [("out", "metadata"), ("out", ""), ("orders", "state/1.delta")])
def test_a_link_that_leads_out_is_refused(root: Path, tmp_path: Path, location: str, path: str, call: str) -> None:
    files = RootedFiles(str(root), f"{root}/{location}")
    with pytest.raises(CheckpointError, match="outside of the checkpoint root"):
        CALLS[call](files, path, tmp_path)
    assert not (tmp_path / "copy").exists()


def test_a_link_that_is_turned_outward_while_it_is_read_is_refused_from_then_on(root: Path, tmp_path: Path) -> None:
    files = RootedFiles(str(root), f"{root}/alias")
    assert files.read("metadata") == b"ours"
    (root / "alias").unlink()
    (root / "alias").symlink_to(tmp_path / "checkpoints-secret")
    with pytest.raises(CheckpointError, match="outside"):
        files.read("metadata")
