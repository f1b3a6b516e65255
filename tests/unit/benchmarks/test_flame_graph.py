"""A flame graph shows each call as wide as its share of the looks, and stays small."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from benchmarks.flame_graph import MIN_SHARE, WIDTH, Stack, flame_svg, stacks_of, tree_of, working
from hypothesis import given
from hypothesis import strategies as st

STACKS = st.dictionaries(
    st.lists(
        st.sampled_from(["main (a.py:1)", "loop", "<lambda>", "read & write", "write"]), min_size=1, max_size=6
    ).map(tuple),
    st.integers(1, 500),
    max_size=20,
)


def test_stacks_are_read_with_their_numbers_and_equal_ones_are_added() -> None:
    assert stacks_of("main;run (a b) 3\nmain;run (a b) 4\nmain 1\nnoise\n") == {("main", "run (a b)"): 7, ("main",): 1}


@given(STACKS)
def test_a_call_has_at_least_the_looks_of_what_it_calls(stacks: dict[tuple[str, ...], int]) -> None:
    waiting = [tree_of(stacks)]
    assert waiting[0].looks == sum(stacks.values())
    while waiting:
        frame = waiting.pop()
        assert frame.looks >= sum(call.looks for call in frame.calls.values())
        waiting += frame.calls.values()


@given(STACKS)
def test_every_picture_is_well_formed_and_within_its_width(stacks: dict[tuple[str, ...], int]) -> None:
    root = ET.fromstring(flame_svg(stacks, "node <1>"))
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        if "x" in box.attrib:
            x, width = float(box.attrib["x"]), float(box.attrib["width"])
            assert x >= 0
            assert x + width <= WIDTH + 0.2


def test_calls_below_a_share_are_left_out_and_the_file_stays_small() -> None:
    stacks: dict[Stack, int] = {("main", f"call-{number}", "x" * 80): 1 for number in range(5000)}
    stacks["main", "hot"] = 5000
    picture = flame_svg(stacks, "many")
    assert len(picture) < 300_000
    assert re.findall("call-[0-9]+", picture) == []
    assert MIN_SHARE > 1 / 10_000
    assert "hot: 50.0%" in picture


def test_threads_that_wait_are_left_out_and_those_that_wait_in_between_are_not() -> None:
    stacks = {("run", "Condition.wait (threading.py:327)"): 5, ("Condition.wait (a)", "work"): 2, ("run",): 1}
    assert working(stacks, ("Condition.wait",)) == {("Condition.wait (a)", "work"): 2, ("run",): 1}
