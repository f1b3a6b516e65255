"""The check of prose lets plain sentences pass and names riddles, each with its line and a way to mend it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.check_prose import check_source, main


def mends(source: str) -> list[str]:
    return [finding.mend for finding in check_source(source, "x.py")]


def function(docstring: str, decorator: str = "") -> str:
    return f'{decorator}\ndef f(): \n    """{docstring}"""\n'


@pytest.mark.parametrize(
    "docstring", ["Return the lag.", "Whether it is open.", "See `f`.", "Pass it on.", "Need a key."]
)
def test_a_function_may_begin_with_a_verb_or_whether(docstring: str) -> None:
    assert mends(function(docstring)) == []


@pytest.mark.parametrize(
    "docstring",
    ["What it has.", "The lag.", "Of a task: its lag.", "How long it takes.", "Keys by store.", "`lag`: as shown.",
     "Called when it ends.", "Returns the lag."],
)  # fmt: skip
def test_a_function_does_not_begin_with_a_question_a_noun_or_a_third_person(docstring: str) -> None:
    assert len(mends(function(docstring))) == 1


@pytest.mark.parametrize(
    "text", ["a hop that does not begin as one", "a schema of more than {n} parts", "a key which is too long"]
)
def test_an_error_text_without_a_verb_of_its_own_is_found(text: str) -> None:
    assert len(mends(f"raise ValueError(f'{text}')")) == 1


@pytest.mark.parametrize("riddle", ["nobody waits", "a node that is none", "whoever asks", "a node is told"])
def test_riddles_are_found_in_docstrings_comments_and_errors(riddle: str) -> None:
    assert len(mends(function(f"Return it: {riddle}."))) == 1
    assert len(mends(f"a = 1  # {riddle}")) == 1
    assert len(mends(f"raise ValueError('it is not there: {riddle}')")) == 1


def test_a_finding_names_file_line_text_and_a_way_to_mend_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.py"
    file.write_text('"""A module."""\n\n\ndef f() -> int:\n    """What it has."""\n    return 1\n')
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"{file}:5: 'What it has.': a function's docstring begins with")
