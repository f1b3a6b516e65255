"""Operations become plain changes, in order, as RocksDB itself would apply them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from understudy_node.engine.base import EmptyBase
from understudy_node.engine.view import StateView
from understudy_node.replica.store_replica import resolve_operations

Kind = Literal["put", "delete", "merge", "delete-range"]


class Op(NamedTuple):
    kind: Kind
    key: bytes
    value: bytes | None


def _view(records: dict[bytes, bytes | None]) -> StateView:
    return StateView.of(EmptyBase(), 0).with_changes(records, 1)


def _replayed(records: dict[bytes, bytes], operations: Sequence[Op], delimiter: bytes) -> dict[bytes, bytes]:
    for kind, key, value in operations:
        if kind == "put" and value is not None:
            records[key] = value
        elif kind == "delete":
            records.pop(key, None)
        elif kind == "merge" and value is not None:
            records[key] = records[key] + delimiter + value if key in records else value
        elif value is not None:
            records = {other: kept for other, kept in records.items() if not key <= other < value}
    return records


KEYS = st.sampled_from([b"", b"a", b"a\0", b"b", b"c"])
OPERATIONS = st.lists(
    st.builds(Op, st.sampled_from(["put", "merge", "delete-range"]), KEYS, KEYS)
    | st.builds(Op, st.just("delete"), KEYS, st.none()),
    max_size=12,
)


@given(st.dictionaries(KEYS, st.binary(max_size=2)), OPERATIONS, st.sampled_from([b"", b","]))
def test_the_changes_of_any_operations_equal_their_replay(
    records: dict[bytes, bytes], operations: list[Op], delimiter: bytes
) -> None:
    view = _view(dict(records))
    after = view.with_changes(resolve_operations(view, operations, delimiter), 2)
    assert dict(after.scan()) == _replayed(dict(records), operations, delimiter)


def test_operations_see_what_the_same_version_changed_before_them() -> None:
    view = _view({b"list": b"1", b"r1": b"", b"r2": b""})
    changes: dict[bytes, bytes | None] = {b"list": b"new", b"r3": b"", b"r1": None}
    operations = [Op("merge", b"list", b"2"), Op("delete-range", b"r", b"s")]
    assert resolve_operations(view, operations, b",", changes) == {
        b"list": b"new,2",
        b"r1": None,
        b"r2": None,
        b"r3": None,
    }
