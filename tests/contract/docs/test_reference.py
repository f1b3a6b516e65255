"""The generated pages of the reference say what the code says."""

from __future__ import annotations

import pytest
from tools.reference.pages import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    written = (FOLDER / name).read_text()
    assert written == PAGES[name](), "python -m tools.reference writes it"
