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


def test_a_property_begins_with_a_noun() -> None:
    assert mends(function("The lag.", "@property")) == []
    assert mends(function("Whether it is open.", "@cached_property")) == []
    assert len(mends(function("What it has.", "@property"))) == 1


@pytest.mark.parametrize(
    "source", ['class A:\n    """{}"""\n', 'A = 1\n"""{}"""\n', 'class B:\n    a: int\n    """{}"""\n']
)
def test_classes_constants_and_fields_begin_with_a_noun(source: str) -> None:
    assert mends(source.format("The lag of a task.")) == []
    assert mends(source.format("Keys of a store.")) == []
    for riddle in ("What is asked.", "Of a task: its lag.", "How long it waits.", "Finds the keys."):
        assert len(mends(source.format(riddle))) == 1


def test_a_module_does_not_begin_with_a_question() -> None:
    assert mends('"""Parses keys."""') == mends('"""The parser of keys."""') == []
    assert len(mends('"""What a key is."""')) == 1


@pytest.mark.parametrize(
    "text", ["the hop has no header", "no answer", "give a key or a range of keys", "{n} keys are above 4"]
)
def test_an_error_text_with_a_verb_of_its_own_passes(text: str) -> None:
    assert mends(f"raise ValueError(f'{text}')") == []


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


@pytest.mark.parametrize(
    "plain", ["`none` is a value", "the value 'none'", 'the value "none"', "none of the keys", "None"]
)
def test_none_as_a_value_is_no_riddle(plain: str) -> None:
    assert mends(f"a = 1  # {plain}") == []


def test_a_finding_names_file_line_text_and_a_way_to_mend_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.py"
    file.write_text('"""A module."""\n\n\ndef f() -> int:\n    """What it has."""\n    return 1\n')
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith(f"{file}:5: 'What it has.': a function's docstring begins with")
