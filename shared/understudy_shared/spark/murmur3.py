"""Computes the partition of a key as Spark does: Murmur3 (x86, 32 bits) over its columns, seed 42, positive remainder.

Pure. Each column's hash is the next column's seed and a null leaves the seed as it is. Spark differs from standard
Murmur3 in the tail: each byte after the last whole word goes through a full mix round as a signed integer. The C
library computes the same when those bytes are widened to words; only its finaliser, which includes the length, has to
be inverted and applied again with the true length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import cast

import mmh3

from understudy_shared.spark import types as t
from understudy_shared.spark.unsafe_row import FunctionSource, fixed_code, signed_big_endian, unscaled_of

RowHash = Callable[[Sequence[object]], int]
Fold = Callable[..., int]
"""A function (value, unsigned seed) -> unsigned hash, for a value that is not null."""

SEED = 42
_WORD = 0xFFFFFFFF
_SIGNED_WORDS = tuple(struct.pack("<i", byte - 256 if byte > 127 else byte) for byte in range(256))
# The finaliser multiplies by these two odd constants (Murmur3_x86_32.fmix); their inverses modulo 2^32 undo that.
_UNMIX_1 = pow(0x85EBCA6B, -1, 1 << 32)
_UNMIX_2 = pow(0xC2B2AE35, -1, 1 << 32)
_pack_int = struct.Struct("<i").pack
_pack_long = struct.Struct("<q").pack
_murmur3 = mmh3.mmh3_32_uintdigest


def compile_row_hash(struct_type: t.StructType) -> RowHash:
    """Compile a function from a row to Spark's `hash(column, ...)`, a signed int32; further columns are ignored."""
    source = FunctionSource("row_hash(row)")
    source.add(f"h = {SEED}")
    for index, field in enumerate(struct_type.fields):
        if isinstance(field.type, t.VoidType):
            continue
        source.add(f"c = row[{index}]")
        source.add("if c is not None:")
        _add_fold(source, field.type)
    source.add("return h - 0x100000000 if h & 0x80000000 else h")
    return cast(RowHash, source.compile())


def hash_bytes(data: bytes, seed: int) -> int:
    """Compute Spark's `Murmur3_x86_32.hashUnsafeBytes`, unsigned."""
    size = len(data)
    rest = size & 3
    if not rest:
        return _murmur3(data, seed)
    if rest == 1:
        widened = data[:-1] + _SIGNED_WORDS[data[-1]]
    elif rest == 2:
        widened = data[:-2] + _SIGNED_WORDS[data[-2]] + _SIGNED_WORDS[data[-1]]
    else:
        widened = data[:-3] + _SIGNED_WORDS[data[-3]] + _SIGNED_WORDS[data[-2]] + _SIGNED_WORDS[data[-1]]
    h = _murmur3(widened, seed)
    # Invert the finaliser: xor-shifts and multiplications by odd numbers are bijections on 32 bits.
    h ^= h >> 16
    h = h * _UNMIX_2 & _WORD
    # x ^ x >> 13 is undone by all its multiples within 32 bits: 13 and 26.
    h ^= h >> 13 ^ h >> 26
    h = h * _UNMIX_1 & _WORD
    # The digest of no bytes is the finaliser alone, applied to the seed.
    # The library has mixed in the widened length: take it out, and put the true one in.
    return _murmur3(b"", h ^ h >> 16 ^ len(widened) ^ size)


def _add_fold(source: FunctionSource, spark_type: t.SparkType) -> None:
    """Hash a column; the common types inline, to save a call per column."""
    murmur3 = source.bind(_murmur3)
    code = fixed_code(spark_type)
    if isinstance(spark_type, t.StringType | t.BinaryType):
        data = "c"
        if isinstance(spark_type, t.StringType):
            source.add("b = c.encode('utf-8', 'surrogateescape')", 2)
            data = "b"
        source.add(f"h = {source.bind(hash_bytes)}({data}, h) if len({data}) & 3 else {murmur3}({data}, h)", 2)
    elif code is not None and code in "bhiq" and not isinstance(spark_type, t.DecimalType):
        pack = source.bind(_pack_long if code == "q" else _pack_int)
        source.add(f"h = {murmur3}({pack}(c), h)", 2)
    else:
        source.add(f"h = {source.bind(_fold_of(spark_type))}(c, h)", 2)


def _fold_of(spark_type: t.SparkType) -> Fold:
    match spark_type:
        case t.StructType(fields):
            return _sequence_fold([_fold_of(field.type) for field in fields])
        case t.ArrayType(element):
            return _array_fold(_fold_of(element))
        case t.MapType(key, value):
            return _map_fold(_fold_of(key), _fold_of(value))
        case t.DecimalType():
            return _decimal_fold(spark_type)
        case _:
            special = _FOLDS.get(type(spark_type))
            pack = _pack_long if fixed_code(spark_type) == "q" else _pack_int
            return special or (lambda number, seed: _murmur3(pack(number), seed))


def _float_fold(code: str) -> Fold:
    """Hash floats: both zeros as 0.0, every NaN as the canonical one."""
    pack = struct.Struct(code).pack
    nan = pack(float("nan"))

    def fold(value: float, seed: int) -> int:
        return _murmur3(pack(value + 0.0) if value == value else nan, seed)  # noqa: PLR0124

    return fold


def _decimal_fold(spark_type: t.DecimalType) -> Fold:
    unscaled = unscaled_of(spark_type)

    def fold_narrow(value: Decimal, seed: int) -> int:
        return _murmur3(_pack_long(unscaled(value)), seed)

    def fold_wide(value: Decimal, seed: int) -> int:
        return hash_bytes(signed_big_endian(unscaled(value)), seed)

    return fold_wide if spark_type.is_wide else fold_narrow


def _fold_calendar_interval(parts: tuple[int, int, int], seed: int) -> int:
    months, days, micros = parts
    # As HashExpression: microseconds first, then days, then months, each hash the seed of the next.
    return _murmur3(_pack_int(months), _murmur3(_pack_int(days), _murmur3(_pack_long(micros), seed)))


def _sequence_fold(folds: Sequence[Fold]) -> Fold:
    def fold(values: Sequence[object], seed: int) -> int:
        for value, fold_value in zip(values, folds, strict=True):
            if value is not None:
                seed = fold_value(value, seed)
        return seed

    return fold


def _array_fold(fold_element: Fold) -> Fold:
    def fold(values: Sequence[object], seed: int) -> int:
        for value in values:
            if value is not None:
                seed = fold_element(value, seed)
        return seed

    return fold


def _map_fold(fold_key: Fold, fold_value: Fold) -> Fold:
    def fold(pairs: Sequence[tuple[object, object]], seed: int) -> int:
        for key, value in pairs:
            if key is not None:
                seed = fold_key(key, seed)
            if value is not None:
                seed = fold_value(value, seed)
        return seed

    return fold


_FOLDS: dict[type[t.SparkType], Fold] = {
    t.VoidType: lambda _, seed: seed,
    t.BooleanType: lambda flag, seed: _murmur3(_pack_int(1 if flag else 0), seed),
    t.StringType: lambda text, seed: hash_bytes(text.encode("utf-8", "surrogateescape"), seed),
    t.BinaryType: hash_bytes,
    t.FloatType: _float_fold("<f"),
    t.DoubleType: _float_fold("<d"),
    t.CalendarIntervalType: _fold_calendar_interval,
}
