"""docs/kips.md has every statement of the proposals, and each has a test of its number."""

from __future__ import annotations

import re
from functools import cache

from tests.support.repository import ROOT

DOCUMENT = (ROOT / "docs" / "kips.md").read_text()
NUMBERED = re.compile(r"test_statement_(\d\d(?:_(?:and_)?\d\d)*)_\w+")


@cache
def every_test() -> frozenset[str]:
    """Every test function, methods of classes included, whatever folder it is in."""
    return frozenset(
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"(?m)^ *(?:async )?def (test_\w+)\(", path.read_text())
    )


NOTHING_TO_SHOW = {63}
"""In flight upstream, and nothing corresponds here."""


def test_every_statement_is_shown_by_a_test_of_its_number() -> None:
    shown = {digits for of in map(NUMBERED.fullmatch, every_test()) if of for digits in re.findall(r"\d\d", of[1])}
    assert {f"{number:02d}" for number in {*range(1, 16), *range(23, 64)} - NOTHING_TO_SHOW} - shown == set()


def test_every_number_of_the_five_proposals_has_a_row() -> None:
    listed: set[int] = set()
    for cell in re.findall(r"(?m)^\| ([\d, -]+) \|", DOCUMENT):
        for part in cell.split(", "):
            first, _, last = part.partition("-")
            listed |= set(range(int(first), int(last or first) + 1))
    assert listed == set(range(1, 16)) | set(range(23, 64))
