"""Collected lists and sets: their buffer is one binary column, a row of one array (pure).

The buffer does not say of what the array is: the result's type does, and must be given.
"""

from __future__ import annotations

from base64 import b64decode

from understudy_node.stores.result_columns import Buffers, Made, Printed, ResultError
from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.types import ArrayType, BinaryType, Field, StructType


def collected_of(buffers: Buffers) -> Made | None:
    """The elements in the order in which they are stored; of a set Spark promises none."""
    if buffers.types != (BinaryType(),):
        return None
    if not isinstance(buffers.declared, ArrayType):
        raise ResultError(
            "a list is stored without the type of its elements",
            where=f"result {buffers.result}",
            fix='Say it, for example type = "array<string>"',
        )
    (column,), row = buffers.columns, StructType((Field("elements", buffers.declared),))
    print_row = compile_json_printer(row)

    def compute(printed: Printed) -> object:
        stored = printed[column]
        return None if stored is None else print_row(b64decode(str(stored)))["elements"]

    return buffers.declared, compute
