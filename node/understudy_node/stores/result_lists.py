"""Collected lists and sets: their buffer is one binary column, a row of one array (pure).

The buffer does not contain the element type: the result's type does, and must be given.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import cast

from understudy_node.stores.result_columns import Buffers, Made, Printed, ResultError
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.types import ArrayType, BinaryType, ByteType, Field, StructType


def list_of(buffers: Buffers) -> Made | None:
    """Return the elements in the order in which they are stored."""
    if buffers.types != (BinaryType(),):
        return None
    return _collected(buffers, _declared(buffers))


def set_of(buffers: Buffers) -> Made | None:
    """Return the elements in the order in which they are stored; Spark promises no order."""
    if buffers.types != (BinaryType(),):
        return None
    declared = _declared(buffers)
    if declared.element != BinaryType():
        return _collected(buffers, declared)
    # Byte arrays are not equal by their content in Java: Spark stores each as an array of numbers.
    _, numbers_of = _collected(buffers, ArrayType(ArrayType(ByteType())))

    def compute(printed: Printed) -> object:
        found = cast("list[list[int]] | None", numbers_of(printed))
        return None if found is None else [b64encode(bytes(each & 0xFF for each in one)).decode() for one in found]

    return declared, compute


def _declared(buffers: Buffers) -> ArrayType:
    if isinstance(buffers.declared, ArrayType):
        return buffers.declared
    raise ResultError(
        "a list is stored without the type of its elements",
        where=f"result {buffers.result}",
        fix='Say it, for example type = "array<string>"',
    )


def _collected(buffers: Buffers, stored: ArrayType) -> Made:
    (column,), row = buffers.columns, StructType((Field("elements", stored),))
    print_row = compile_json_printer(row)

    def compute(printed: Printed) -> object:
        data = printed[column]
        return None if data is None else print_row(b64decode(str(data)))["elements"]

    return stored, compute
