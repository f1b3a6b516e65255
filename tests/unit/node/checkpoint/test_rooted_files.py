"""A checkpoint that another process chose: no symbolic link leads out of its root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from understudy_node.checkpoint.files import RootedFiles
from understudy_shared.base.errors import CheckpointError


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
