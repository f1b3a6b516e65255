"""docs/kips.md names tests as proof: each of them exists, and none that is numbered after a statement is left out."""

from __future__ import annotations

import re
from functools import cache

from tests.support.repository import ROOT

DOCUMENT = (ROOT / "docs" / "kips.md").read_text()
NAMED = set(re.findall(r"`(test_\w+)`", DOCUMENT))
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


def rows_of(number: int) -> str:
    """The rows of the statements that have this number, alone or beside others."""
    return "\n".join(re.findall(rf"(?m)^\| (?:\d+, )*{number}(?:, \d+)* \|.*$", DOCUMENT))


def test_every_test_that_is_numbered_after_a_statement_is_in_the_document() -> None:
    numbered = {name for name in every_test() if NUMBERED.fullmatch(name)}
    assert numbered - NAMED == set()


def test_every_statement_is_shown_by_a_test_of_its_number() -> None:
    for number in sorted({*range(1, 16), *range(23, 64)} - NOTHING_TO_SHOW):
        numbers = {digits for of in NUMBERED.findall(rows_of(number)) for digits in re.findall(r"\d\d", of)}
        assert f"{number:02d}" in numbers


def test_every_number_of_the_five_proposals_has_a_row() -> None:
    listed: set[int] = set()
    for cell in re.findall(r"(?m)^\| ([\d, -]+) \|", DOCUMENT):
        for part in cell.split(", "):
            first, _, last = part.partition("-")
            listed |= set(range(int(first), int(last or first) + 1))
    assert listed == set(range(1, 16)) | set(range(23, 64))


def test_a_row_without_a_test_says_why() -> None:
    """A row of the statements, or of an interface, proves something, or says why there is nothing to prove."""
    reasons = ("not offered", "upstream", "nothing corresponds", "never existed")
    for row in re.findall(r"(?m)^\| .*$", DOCUMENT.partition("### Interfaces")[2].partition("### Rejected")[0]):
        if not row.startswith("| theirs") and not row.startswith("| no."):
            assert "`test_" in row or any(reason in row for reason in reasons), row
