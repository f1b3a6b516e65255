"""docs/migrating-from-kafka.md: its tables are what the options' parser does with each option."""

from __future__ import annotations

import re

import pytest
from tests.support.kafka.migration_table import BEGIN, END, PAGE, SCRIPT, written

from understudy_pipeline.aligned.option_parsing import parse_options
from understudy_pipeline.aligned.rows import RowOptions, spark_schema

PAGE_TEXT = PAGE.read_text()


def test_the_tables_are_what_the_parser_does() -> None:
    found = PAGE_TEXT.partition(BEGIN)[2].partition(END)[0].strip()
    assert found == written(), "python -m tests.support.kafka.migration_table"


def test_the_columns_are_those_of_the_source_in_its_order() -> None:
    (listed,) = re.findall(r"(?ms)^(`key`, .*?)\.$", PAGE_TEXT)
    columns = re.findall(r"`(\w+)`", listed.replace("with `includeHeaders`", ""))
    schema = re.sub(
        r"<.*?>", "", spark_schema(RowOptions(include_headers=True, long_offsets=True)).replace("<struct<", "<")
    )
    assert columns == re.findall(r"(?:^|,)\s*(\w+) \w+", schema)


@pytest.mark.parametrize("block", re.findall(r"(?s)```python\n(.*?)```", PAGE_TEXT))
def test_the_example_has_options_that_are_taken(block: str) -> None:
    options = dict(re.findall(r'\.option\("([^"]+)", "([^"]+)"\)', block))
    assert options.keys() > SCRIPT.keys()
    parse_options(options)
