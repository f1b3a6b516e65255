"""The generated pages of the reference say what the code says."""

from __future__ import annotations

import re

import pytest
from tests.support.repository import ROOT
from tools.reference.pages import FOLDER, PAGES

from understudy.commands.group import cli
from understudy_shared.http.openapi.document import SOURCE


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    written = (FOLDER / name).read_text()
    assert written == PAGES[name](), "python -m tools.reference writes it"


def test_every_command_and_every_call_has_a_section() -> None:
    commands = (FOLDER / "command-line.md").read_text()
    assert [name for name in cli.commands if f"\n## {name}\n" not in commands] == []
    calls = "".join((FOLDER / name).read_text() for name in ("http.md", "admin.md"))
    names = [name.replace("_", "-") for name in re.findall(r'"operationId": "(\w+)"', SOURCE.read_text())]
    assert names
    assert [name for name in names if f"\n### {name}\n" not in calls] == []


def test_storage_names_tests_that_exist() -> None:
    text = (FOLDER / "support-matrix.md").read_text()
    paths = [part for part in text.split("`") if part.startswith("tests/")]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
