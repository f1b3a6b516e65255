"""The cost of a key and a value in the hot path, in microseconds and as ratios to a named peer of the same run.

Run `python benchmarks/codec.py`. Times are the best of five rounds: the machine's noise only ever adds.
"""

from __future__ import annotations

import json
import struct
import timeit
from collections.abc import Callable

import orjson

from understudy_shared.spark.json_printer import compile_json_printer
from understudy_shared.spark.key_codec import KeyCodec
from understudy_shared.spark.types import Field, LongType, StringType, StructType, TimestampType
from understudy_shared.spark.unsafe_row import compile_row_decoder, compile_row_encoder

ROUNDS = 5
CALLS = 50_000
NAME = "abcdefghijklmnop"


def main() -> None:
    string_key = KeyCodec(StructType((Field("k", StringType()),)))
    window = StructType((Field("start", TimestampType()), Field("end", TimestampType())))
    window_key = KeyCodec(StructType((Field("window", window), Field("k", StringType()))))
    name_row, odd_row = (NAME,), (NAME[:15],)
    window_row = ((1_362_096_000_000_000, 1_362_099_600_000_000), NAME)
    window_json = window_key.to_json(window_key.encode(window_row))
    value = StructType(
        (
            Field("count", LongType()),
            Field("name", StringType()),
            Field("max", TimestampType()),
            Field("sum", LongType()),
            Field("last", StringType()),
        )
    )
    value_row = (15, NAME, 1_362_096_000_123_456, -7, "N14228")
    value_bytes = compile_row_encoder(value)(value_row)
    decode, show = compile_row_decoder(value), compile_json_printer(value)
    shown = show(value_bytes)

    dumps = report("json.dumps of a 5-column value", lambda: json.dumps(shown))
    loop = report("murmur3 of 16 bytes, a Python loop", lambda: murmur3_loop(NAME.encode(), 42))
    report("orjson.dumps of the same value", lambda: orjson.dumps(shown), dumps, "json.dumps")
    report("hash, 16-character string", lambda: string_key.partition(name_row, 200), loop, "the loop")
    report("hash, 15-character string", lambda: string_key.partition(odd_row, 200), loop, "the loop")
    report("hash, window and string", lambda: window_key.partition(window_row, 200), loop, "the loop")
    report("encode, 1 string", lambda: string_key.encode(name_row), dumps, "json.dumps")
    report("encode, window and string", lambda: window_key.encode(window_row), dumps, "json.dumps")
    report("parse, 1 string", lambda: string_key.parse_json([NAME]), dumps, "json.dumps")
    report("parse, window and string", lambda: window_key.parse_json(window_json), dumps, "json.dumps")
    report("decode, 5 columns", lambda: decode(value_bytes), dumps, "json.dumps")
    report("print, 5 columns", lambda: show(value_bytes), dumps, "json.dumps")


def report(name: str, call: Callable[[], object], peer_us: float | None = None, peer: str = "") -> float:
    """Print microseconds per call, and return them."""
    cost_us = min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6
    ratio = "" if peer_us is None else f"{cost_us / peer_us:7.2f} x {peer}"
    print(f"{name:38} {cost_us:7.3f} us {ratio}")
    return cost_us


def murmur3_loop(data: bytes, seed: int) -> int:
    """Compute the hash as the algorithm is written down, without a library."""
    h = seed
    for (block,) in struct.iter_unpack("<I", data):
        k = block * 0xCC9E2D51 & 0xFFFFFFFF
        k = (k << 15 | k >> 17) * 0x1B873593 & 0xFFFFFFFF
        h ^= k
        h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


if __name__ == "__main__":
    main()
