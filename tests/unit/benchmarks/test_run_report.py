"""The report of a whole run: written after each part, readable by people and by the comparison."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks import __main__ as bench
from benchmarks.report import rounds_of, skips_in, write_report

PART = """
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--report", type=pathlib.Path)
print("a figure")
print("skipped: no gauge")
parser.parse_args().report.write_text(json.dumps({"rounds": {"it": [{"per_second": 1.0}]}}))
sys.exit(%d)
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two benchmarks; the second fails, and ends the run's hopes for a zero."""
    for name, code in (("good", 0), ("bad", 3)):
        (tmp_path / f"part_{name}.py").write_text(PART % code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(bench, "BENCHMARKS", {"good: one": ["part_good"], "bad: two": ["part_bad"]})
    monkeypatch.setattr(bench, "writes_report", lambda module: True)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--report", str(tmp_path / "out")])
    return tmp_path / "out"


def test_a_part_that_fails_loses_nothing_of_the_others(parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main() == 1
    report = json.loads((parts / "report.json").read_text())
    assert [part["status"] for part in report["parts"].values()] == ["done", "ended with 3"]
    assert report["parts"]["good: one"]["skipped"] == ["no gauge"]
    assert {"python", "cores"} <= report["machine"].keys()
    assert "uvicorn" in report["versions"]
    assert report["commit"]
    text = (parts / "report.md").read_text()
    assert "a figure" in text
    assert "ended with 3" in text
    assert "| node lookup" in text
    assert "not measured" in capsys.readouterr().out


def test_the_report_is_there_after_each_part(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def stopped(module: str, arguments: list[str]) -> dict[str, object]:
        if module == "part_bad":
            seen.append(len(json.loads((parts / "report.json").read_text())["parts"]))
            raise KeyboardInterrupt
        return run(module, arguments)

    run = bench.run
    monkeypatch.setattr(bench, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        bench.main()
    assert seen == [1]


def test_a_quick_run_takes_small_sizes_of_modules_that_exist() -> None:
    modules = {module for module, *_ in bench.BENCHMARKS.values()}
    assert bench.QUICK.keys() <= modules | {"benchmarks.batches"}


def test_the_rounds_of_a_run_carry_the_names_of_their_parts(tmp_path: Path) -> None:
    write_report(tmp_path / "one", {"node": [{"per_second": 1.0}]})
    assert rounds_of(json.loads((tmp_path / "one").read_text())) == {"node": [{"per_second": 1.0}]}
    run = {"parts": {"lookups: all": {"rounds": {"node": [{"per_second": 1.0}]}}, "codec: keys": {"rounds": {}}}}
    assert rounds_of(run) == {"lookups: node": [{"per_second": 1.0}]}


def test_what_was_skipped_is_found_in_what_was_printed() -> None:
    assert skips_in("one\nskipped: no nginx\n  skipped: inside\nskipped: no Maven\n") == ["no nginx", "no Maven"]
