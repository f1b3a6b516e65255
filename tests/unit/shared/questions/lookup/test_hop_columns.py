"""Columns of a hop are sequences of what is in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.questions.lookup.hop import (
    NO_PARTITION,
    HopKey,
    HopKeys,
    indexes_by_partition,
)

keys = st.lists(st.builds(HopKey, st.integers(0, 3), st.binary(max_size=4)), max_size=8)


@given(keys, st.slices(8))
def test_keys_as_columns_are_those_keys(items: list[HopKey], some: slice) -> None:
    columns = HopKeys.of(items)
    assert (list(columns), len(columns), list(columns[some])) == (items, len(items), items[some])
    assert [columns[index] for index in range(len(items))] == items
    assert columns.at(range(len(items))[some]) == items[some]
    assert HopKeys.of(columns) is columns


@given(st.lists(st.integers(NO_PARTITION, 3)))
def test_every_key_with_a_partition_is_among_those_of_its_partition_once(partitions: list[int]) -> None:
    found = indexes_by_partition(partitions)
    assert sorted((partition, index) for partition, indexes in found.items() for index in indexes) == sorted(
        (partition, index) for index, partition in enumerate(partitions) if partition != NO_PARTITION
    )
