"""docs/client-testing.md: its tests are tests, for pytest and for unittest, and it names every call."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from types import ModuleType

from tests.support.repository import ROOT

DOCUMENT = (ROOT / "docs/client-testing.md").read_text()
FOR_PYTEST, FOR_UNITTEST = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


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
