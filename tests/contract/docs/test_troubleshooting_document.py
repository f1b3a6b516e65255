"""docs/troubleshooting.md quotes what the code says."""

from __future__ import annotations

import re

from tests.support.documents.spoken import spoken
from tests.support.repository import ROOT

DOCUMENT = (ROOT / "docs" / "troubleshooting.md").read_text()
PACKAGES = (
    "client/understudy",
    "node/understudy_node",
    "aligned/understudy_aligned",
    "pipeline/understudy_pipeline",
    "router/understudy_router",
    "shared/understudy_shared",
)
NOT_OURS = {"No module named", '"found": false', "sum", "count", "marks: unverifiable-v1", "null", "lag"}
NOT_OURS |= {"Missing Authority Key Identifier", "CA cert does not include key usage extension"}
"""The errors that Python and OpenSSL print, and those that answers show."""


def quoted() -> set[str]:
    """The texts of the first column of each table."""
    cells = re.findall(r"(?m)^\| (.+?) \|", DOCUMENT)
    return {text for cell in cells for text in re.findall(r"`([^`]+)`", cell)} - NOT_OURS


def test_every_text_that_it_quotes_is_one_that_the_code_says() -> None:
    said = "\n".join(spoken(package) for package in PACKAGES)
    assert len(quoted()) > 10
    assert [text for text in sorted(quoted()) if text.strip(" ,") not in said] == []
