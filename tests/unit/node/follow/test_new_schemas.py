"""New schemas are looked for at commits alone, by names that are known, and again until they were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.node.checkpoint.test_state_variables import KINDS, checkpoint

from understudy_node.checkpoint.description import CheckpointDescription
from understudy_node.checkpoint.files import FileStat, LocalFiles
from understudy_node.follow.poll_loop import NewSchemas


class Counted(LocalFiles):
    """Local files that count the looks at them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.looks = 0

    def stats(self, paths: Sequence[str]) -> list[FileStat | None]:
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
