"""A cursor, a filter or a hop of a scan that a stranger made is used, or refused by type."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

import orjson
from tests.fuzz.hunting import hunt, sizes
from tests.fuzz.mutation import bad_bytes, bad_document
from tests.fuzz.test_http import SCAN

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.questions.export.hop import decode_end_hop, decode_export_hop, decode_export_part
from understudy_shared.questions.scan.hop import decode_part, decode_scan_hop
from understudy_shared.questions.scan.question import PREFIX, ScanCursor, ScanRequest, decode_scan_cursor
from understudy_shared.questions.scan.requests import parse_export, parse_scan, parse_scan_body
from understudy_shared.questions.scan.where import compile_where
from understudy_shared.reads.columns import Columns
from understudy_shared.spark.types import DecimalType, DoubleType, LongType, StringType, TimestampType

CURSOR = ScanCursor("flights", "life-1", "op0", 7, 1_000, 2, b"key", "00ff" * 6, 5).encode()
QUESTION = orjson.dumps(
    {
        "where": [["n", ">", 1], ["s", "in", ["a"]], ["d", "=", "1.50"], ["x", "<", 1.5], ["t", "is_null"]],
        "prefix": ["a", 1],
        "fields": ["n"],
        "limit": 5,
        "partition": 1,
        "cursor": CURSOR,
        "explain": True,
        "longs": "string",
    }
)
COLUMNS = Columns(
    [("s", StringType()), ("n", LongType())], [("d", DecimalType(10, 2)), ("x", DoubleType()), ("t", TimestampType())]
)
VALUES = {"s": "a", "n": 1, "d": None, "x": 0.5, "t": 5}
PART = (
    b'{"found":1,"looked_at":2,"after":"AAA=","is_end":false,"stamp":{},"committed_at_us":5,"access":"pass",'
    b'"rows":[{}]}\n'
)


EXPORT = SCAN[:-1] + b',"format":"arrow","digest":"00ff","next_partition":1,"end":{"rows":1}}'
EXPORTED_HEAD = PART[: PART.index(b',"rows"')] + b',"shape":"00ff","head_bytes":2,"bytes":3}'


def scan_of_export(given: Mapping[str, object]) -> ScanRequest:
    return parse_export(given).scan


def cursors(rng: Random, count: int) -> list[bytes]:
    """Cursors with changed characters, and others whose JSON was changed."""
    raw = base64.urlsafe_b64decode(CURSOR[len(PREFIX) :] + "==")
    made = []
    for _ in range(count):
        inner = base64.urlsafe_b64encode(bad_document(raw, rng)).rstrip(b"=")
        made.append(bad_bytes(CURSOR.encode(), rng) if rng.random() < 0.5 else PREFIX.encode() + inner)
    return made


@sizes(20_000)
def test_no_cursor_of_a_scan_is_taken_for_another(inputs: int) -> None:
    def attempt(batch: Sequence[bytes]) -> None:
        for token in batch:
            try:
                found = decode_scan_cursor(token.decode("latin-1"))
            except UnderstudyError:
                continue
            assert found.encode().encode() == token

    hunt("scan-cursor", inputs, cursors, attempt)


@sizes(20_000)
def test_every_question_is_compiled_or_refused(inputs: int) -> None:
    def attempt(batch: Sequence[bytes]) -> None:
        for body in batch:
            for parse in (partial(parse_scan, "scan"), partial(parse_scan, "count"), scan_of_export):
                try:
                    asked = parse(parse_scan_body(body))
                    for term in compile_where(asked.question.where, COLUMNS):
                        assert term.matches(VALUES[term.column.path[0]]) in {True, False}
                    asked.question.digest("somebody")
                except UnderstudyError:
                    continue

    hunt("scan-question", inputs, lambda rng, count: [bad_document(QUESTION, rng) for _ in range(count)], attempt)


@sizes(20_000)
def test_every_hop_of_a_scan_and_its_reply_is_parsed_or_refused(inputs: int) -> None:
    def made(rng: Random, count: int) -> list[bytes]:
        seeds = [rng.choice((SCAN, PART, EXPORT, EXPORTED_HEAD)) for _ in range(count)]
        bad = [bad_bytes(seed, rng) if rng.random() < 0.3 else bad_document(seed, rng) for seed in seeds]
        return [each + b"\nhdrow" if seed is EXPORTED_HEAD else each for seed, each in zip(seeds, bad, strict=True)]

    def attempt(batch: Sequence[bytes]) -> None:
        for body in batch:
            for decode in (decode_scan_hop, decode_part, decode_export_hop, decode_end_hop, decode_export_part):
                try:
                    decode(body)
                except UnderstudyError:
                    continue

    hunt("scan-hop", inputs, made, attempt)
