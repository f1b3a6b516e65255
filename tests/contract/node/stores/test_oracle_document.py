"""`docs/oracle.md` and the README's table say what `docs/oracle.json` has: what was compared with Spark."""

from __future__ import annotations

from tools.oracle_document import DOCUMENT, README, document, kept, readme_table, with_table


def test_the_documents_are_drawn_from_what_was_compared() -> None:
    lines = kept()
    assert lines
    assert DOCUMENT.read_text() == document(lines), "python -m tools.oracle_document --keep"
    assert README.read_text() == with_table(README.read_text(), readme_table(lines))
