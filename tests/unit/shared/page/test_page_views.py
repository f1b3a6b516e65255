"""What the slots of the page show of an overview document."""

from __future__ import annotations

import pytest
from tests.support.page.overviews import node

from understudy_shared.page.views import (
    node_slots,
)


@pytest.mark.parametrize(
    ("safe", "live", "text"),
    [(True, True, "✓ safe"), (False, True, "✕ not safe"), (None, True, "? unknown"), (True, False, "-")],
)
def test_whether_a_node_may_be_stopped_is_unknown_until_it_is_known(safe: bool | None, live: bool, text: str) -> None:
    shown = node_slots(node(1, live=live, safe_to_stop={"safe": safe, "why": "so"}))
    assert shown["safe"].text == text
    assert shown["safe_why"].text == ("so" if live else ""), "nobody asks whether a dead node may be stopped"
