"""Which failures of a run are few enough to be run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.few_failed import FEW, few_failed


@pytest.mark.parametrize(("failed", "again"), [(0, 0), (1, 1), (FEW, FEW), (FEW + 1, 0)])
def test_a_few_failures_are_named_and_many_are_no_accident(tmp_path: Path, failed: int, again: int) -> None:
    names = [f"tests/unit/test_{number}.py::test_it" for number in range(failed)]
    path = tmp_path / "lastfailed"
    path.write_text(json.dumps(dict.fromkeys(names, True)))
    assert few_failed(path) == names[:again]


def test_without_a_record_of_a_run_there_are_none(tmp_path: Path) -> None:
    assert few_failed(tmp_path / "lastfailed") == []
