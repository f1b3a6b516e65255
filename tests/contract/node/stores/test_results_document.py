"""`docs/results.md` lists exactly the functions that results are made with."""

from __future__ import annotations

from tools.results_document import DOCUMENT, SQL, document

from understudy_shared.base.words import RESULT_FUNCTIONS


def test_the_list_of_finished_values_is_the_one_that_is_generated() -> None:
    assert set(SQL) == RESULT_FUNCTIONS
    assert DOCUMENT.read_text() == document(), "python -m tools.results_document"
