"""docs/migrating-from-kafka.md: its tables are what the options' parser does with each option."""

from __future__ import annotations

import re

import pytest
from tests.support.kafka.migration_table import BEGIN, END, PAGE, SCRIPT, written

from understudy_aligned.option_parsing import parse_options

PAGE_TEXT = PAGE.read_text()


def test_the_tables_are_what_the_parser_does() -> None:
    found = PAGE_TEXT.partition(BEGIN)[2].partition(END)[0].strip()
    assert found == written(), "python -m tests.support.kafka.migration_table"


@pytest.mark.parametrize("block", re.findall(r"(?s)```python\n(.*?)```", PAGE_TEXT))
def test_the_example_has_options_that_are_taken(block: str) -> None:
    options = dict(re.findall(r'\.option\("([^"]+)", "([^"]+)"\)', block))
    assert options.keys() > SCRIPT.keys()
    parse_options(options)
