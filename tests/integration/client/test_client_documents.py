"""The examples of docs/client.md, docs/sql.md and docs/client-testing.md, and the one with types, run as they stand."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_node import ServedNode, served_node
from tests.support.repository import ROOT

NAMES = '[op0]\nname = "aircraft"\nkey = ["tailnum"]\nvalue = ["flights", "delay_sum"]\n'
DOCUMENT = ROOT / "docs/client.md"


class Flights(HandmadeCheckpoint):
    """A checkpoint of two aircraft."""

    def counts(self, version: int) -> dict[str, int]:
        return {"N14228": version, "N24211": 100 + version}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    folder = tmp_path_factory.mktemp("flights")
    names = folder / "names.toml"
    names.write_text(NAMES)
    checkpoint = Flights(folder / "checkpoint").create().add(1, 2, 3)
    with served_node(checkpoint.path, folder / "data", aliases=names) as running:
        running.wait_for_version(3, store="aircraft")
        yield running


def test_each_example_of_the_document_runs(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [part.removeprefix("python\n") for part in DOCUMENT.read_text().split("```")[1::2]]
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace("http://127.0.0.1:8080", f"http://127.0.0.1:{node.port}"), names)
    names["client"].close()
    printed = capsys.readouterr().out
    assert "{'tailnum': 'N0'} absent" in printed
    assert "106 flights by version 3" in printed


def test_the_examples_of_sql_run(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [part for part in (ROOT / "docs/sql.md").read_text().split("```") if part.startswith("python\n")]
    exec(block.removeprefix("python\n").replace("http://127.0.0.1:8080", f"http://127.0.0.1:{node.port}"), {})
    printed = capsys.readouterr().out
    assert "'flights': 3" in printed
    assert "[{'most': 103}] 3 ['aircraft: scan of all rows, 2 rows']" in printed


def test_the_example_with_types_runs(
    node: ServedNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNDERSTUDY_URL", f"http://127.0.0.1:{node.port}")
    runpy.run_path(str(ROOT / "docs/examples/client_reads.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[:2] == ["106", "3 ['2: N14228 2', '3: N14228 3']"]


TESTING = (ROOT / "docs/client-testing.md").read_text()
FOR_PYTEST, FOR_UNITTEST = re.findall(r"```python\n(.*?)```", TESTING, re.DOTALL)


def test_the_examples_for_pytest_pass(tmp_path: Path) -> None:
    (tmp_path / "test_flights.py").write_text(FOR_PYTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_example_for_unittest_passes() -> None:
    module = ModuleType("of_the_document")
    exec(FOR_UNITTEST, module.__dict__)
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(module.TestFlights).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])
