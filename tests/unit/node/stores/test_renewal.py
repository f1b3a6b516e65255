"""A running node takes over new schemas where its replicas can stay, and says what of them it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.unit.node.checkpoint.test_state_variables import FAMILIES, checkpoint, family

from understudy_node.checkpoint.description import CheckpointDescription
from understudy_node.generations import read_alike, with_new_schemas

Kinds = Mapping[str, tuple[str, bool]]
VALUE, MAP = ("ValueState", False), ("MapState", False)


def described(root: Path, kinds: Kinds) -> CheckpointDescription:
    return checkpoint(root, {0: kinds}, (*FAMILIES, family("added")))


def names(description: CheckpointDescription) -> set[str]:
    return {each.name for each in description.operators[0].variables}


def test_a_variable_that_came_or_went_is_taken_over(tmp_path: Path) -> None:
    known = described(tmp_path / "a", {"weather": VALUE})
    for at, kinds in enumerate(({"weather": VALUE, "added": VALUE}, {"added": VALUE})):
        found = described(tmp_path / str(at), kinds)
        after, left = with_new_schemas(known, found)
        assert (names(after), left) == (set(kinds), [])
        assert not read_alike(known, after)


def test_an_operator_that_is_scanned_for_the_first_time_is_read_as_before_until_the_node_is_started_again(
    tmp_path: Path,
) -> None:
    known = described(tmp_path / "a", {"weather": VALUE})
    after, left = with_new_schemas(known, described(tmp_path / "b", {"weather": VALUE, "places": MAP}))
    assert read_alike(known, after)
    assert "map or timers for the first time" in left[0]
    assert "Start the node again" in left[0]


def test_an_operator_that_can_be_read_no_more_is_read_as_before_and_the_reason_is_said(tmp_path: Path) -> None:
    known = described(tmp_path / "a", {"weather": VALUE})
    found = checkpoint(tmp_path / "b", {0: {"weather": ("SetState", False)}, 1: {"added": VALUE}}, (
        *FAMILIES, family("added"),
    ))  # fmt: skip
    after, left = with_new_schemas(known, found)
    assert names(after) == {"weather"}
    assert after.operators[0].variables[0].unsupported is None
    assert "SetState" in left[0]
