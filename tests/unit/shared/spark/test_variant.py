"""Variants that are damaged, or of a later Spark, are shown as their bytes (Spark's own are held against `to_json`)."""

from __future__ import annotations

from base64 import b64decode

from hypothesis import given
from hypothesis import strategies as st

from understudy_shared.spark.json_printer import OPAQUE, variant_json

NAMES = bytes([0x11, 1, 0, 1]) + b"x"
"""A dictionary of one name."""


def stored(value: bytes, names: bytes = NAMES) -> bytes:
    return len(value).to_bytes(4, "little") + value + names


def test_a_value_is_printed_with_its_names() -> None:
    number = bytes([3 << 2, 7])
    one_field = bytes([0b10, 1, 0, 0, 2]) + number
    assert variant_json(stored(one_field)) == '{"x":7}'
    assert variant_json(stored(bytes([0b11, 2, 0, 2, 4]) + number + number)) == "[7,7]"
    assert variant_json(stored(bytes([5 << 2 | 1]) + b'a"\n\x1b\x7f')) == '"a\\"\\n\\u001B\x7f"'


def test_what_cannot_be_decoded_is_its_bytes() -> None:
    unknown_type, later_version = stored(bytes([63 << 2])), stored(bytes([0]), b"\x02\x00\x00")
    not_utf_8, no_name = stored(b"\x05\xff"), stored(bytes([0b10, 1, 1, 0, 1, 0]))
    for data in (b"", b"\0", unknown_type, later_version, not_utf_8, no_name):
        text = variant_json(data)
        assert b64decode(text.removeprefix(OPAQUE)) == data
        assert text.startswith(OPAQUE)


def test_parts_that_lie_in_each_other_do_not_grow() -> None:
    """Two hundred parts, each of them the whole of the next level."""
    level = b"\0"
    for _ in range(20):
        level = bytes([0b111, 200]) + bytes(2 * 200) + len(level).to_bytes(2, "little") + level
    assert variant_json(stored(level)).startswith(OPAQUE)


def test_a_value_nested_deeper_than_python_reaches_is_its_bytes() -> None:
    value = b"\0"
    for _ in range(5000):
        width = 2
        value = bytes([0b11 | (width - 1) << 2, 1]) + b"\0\0" + min(len(value), 65535).to_bytes(2, "little") + value
    assert variant_json(stored(value)).startswith(OPAQUE)


@given(st.binary(max_size=200), st.binary(max_size=30))
def test_no_bytes_raise_anything(value: bytes, names: bytes) -> None:
    assert variant_json(stored(value, names))
    assert variant_json(value)
