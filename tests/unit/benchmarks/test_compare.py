"""What a comparison of two reports calls slower: only what the noise of their rounds does not explain."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks import compare
from benchmarks.compare import Verdict, judged
from benchmarks.report import write_report
from hypothesis import given
from hypothesis import strategies as st

SERIES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=9)


@given(series=SERIES)
def test_a_report_does_not_differ_from_itself(series: list[float]) -> None:
    assert judged(series, series, more_is_better=True) is Verdict.NOISE


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([10, 11, 12], [13, 14, 15], Verdict.SLOWER),
        ([10, 11, 12], [7, 8, 9], Verdict.FASTER),
        ([10, 11, 14], [13, 14, 15], Verdict.NOISE),
        ([100, 101], [102, 103], Verdict.NOISE),
    ],
    ids=["apart", "apart, better", "overlap", "too little"],
)
def test_times_that_lie_apart_are_more_than_noise(before: list[float], after: list[float], verdict: Verdict) -> None:
    assert judged(before, after, more_is_better=False) is verdict


def test_a_rate_that_fell_fails_the_comparison_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, rate in (("before", 100.0), ("after", 50.0)):
        rounds = {"node": [{"per_second": rate, "p50_ms": 1.0}], name: [{"per_second": 1.0}]}
        write_report(tmp_path / name, rounds)
    assert json.loads((tmp_path / "after").read_text())["machine"]["cores"]
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "before"), str(tmp_path / "after")])
    assert compare.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("node")] == ["slower", "noise"]
    assert [line for line in lines if line.endswith("in one of the reports only")] == [
        "after: in one of the reports only",
        "before: in one of the reports only",
    ]
