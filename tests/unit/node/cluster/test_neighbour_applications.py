"""What a node says of other applications on its bus."""

from __future__ import annotations

import pytest

from understudy_node.cluster.member import alone_text
from understudy_shared.bus.gossip import Applications


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, None),
        ({"fligths": 1}, None),
        ({"fligths": 2, "flights": 3}, None),
        ({"fligths": 1, "words": 1}, "others there: 'words'."),
        ({"fligths": 1, "flights": 0}, "others there: 'flights'. Did you mean 'flights'?"),
    ],
    ids=["nothing", "alone", "with-its-like", "beside-another", "only-announced"],
)
def test_only_a_node_without_its_like_names_other_applications(found: dict[str, int], text: str | None) -> None:
    said = alone_text("fligths", Applications(found), where="redis://h")
    assert said == (text and f"this is the only node of application 'fligths' on redis://h; {text}")
