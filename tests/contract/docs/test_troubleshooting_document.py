"""docs/troubleshooting.md quotes what the code says, and leads to every problem that a reader can meet."""

from __future__ import annotations

import re

from tests.support.documents.spoken import spoken
from tests.support.repository import ROOT

from understudy_shared.http.problems import ProblemType

DOCUMENT = (ROOT / "docs" / "troubleshooting.md").read_text()
PACKAGES = (
    "client/understudy",
    "node/understudy_node",
    "pipeline/understudy_pipeline",
    "router/understudy_router",
    "shared/understudy_shared",
)
NOT_OURS = {"No module named", '"found": false', "sum", "count", "marks: unverifiable-v1", "null", "lag"}
"""The errors that Python prints, and those that answers show."""


def quoted() -> set[str]:
    """The texts of the first column of each table."""
    cells = re.findall(r"(?m)^\| (.+?) \|", DOCUMENT)
    return {text for cell in cells for text in re.findall(r"`([^`]+)`", cell)} - NOT_OURS


def test_every_text_that_it_quotes_is_one_that_the_code_says() -> None:
    said = "\n".join(spoken(package) for package in PACKAGES)
    assert len(quoted()) > 30
    assert [text for text in sorted(quoted()) if text.strip(" ,") not in said] == []


def test_it_names_the_problems_of_a_reader() -> None:
    slugs = {problem.slug for problem in ProblemType}
    named = quoted() & slugs
    assert {"bad-key", "forbidden", "lineage-changed", "overloaded", "no-acceptable-replica", "deadline"} <= named
