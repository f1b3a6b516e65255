"""`understudy scan` and `understudy count`: pages are followed to the end, rows are lines, questions are JSON."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.services.canned_server import Canned
from tests.support.services.reading_commands import run

OF = {"store": "aircraft", "version": 7, "committed_at": None, "watermark": None, "position": "us1.a", "lineage": "l"}
WHERE = '["flights", ">", 100]'


def page(*rows: int, cursor: str | None = None) -> Canned:
    found = [{"key": {"n": row}, "value": {"count": row}} for row in rows]
    return Canned(json.dumps({**OF, "rows": found, "next_cursor": cursor}).encode())


def counted(count: int, cursor: str | None = None) -> Canned:
    return Canned(json.dumps({**OF, "count": count, "next_cursor": cursor}).encode())


def questions(asked: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in asked]


def test_a_scan_prints_the_rows_of_every_page_empty_ones_among_them() -> None:
    replies = [page(1, 2, cursor="sc1.a"), page(cursor="sc1.b"), page(3)]
    result, asked = run(["scan", "aircraft", "--where", WHERE, "--fields", "a,b"], replies)
    assert [json.loads(line)["key"]["n"] for line in result.stdout.splitlines()] == [1, 2, 3]
    assert [each.get("cursor") for each in questions(asked)] == [None, "sc1.a", "sc1.b"]
    assert all(each["where"] == [["flights", ">", 100]] for each in questions(asked))
    assert all(each["fields"] == ["a", "b"] for each in questions(asked))
    assert {target for target, _ in asked} == {"POST /v1/stores/aircraft/scan"}


def test_a_range_and_an_order_are_asked_for_on_every_page() -> None:
    options = ["--from", "a", "--to", "b", "--order", "count", "--reverse"]
    _, asked = run(["scan", "s", *options, "--limit", "2"], [page(2, cursor="sc1.a"), page(1)])
    for each in questions(asked):
        assert {"from": "a", "to": "b", "order": "count", "reverse": True}.items() <= each.items()
    _, asked = run(["count", "s", "--from", "a"], [counted(1)])
    assert parse_qs(urlsplit(asked[0][0].split()[1]).query) == {"from": ["a"]}


def test_a_count_goes_on_until_it_is_whole() -> None:
    replies = [counted(5, "sc1.a"), counted(9)]
    result, asked = run(
        ["count", "aircraft", "--prefix", '["UA"]', "--where", WHERE, "--where", '["x", "is_null"]'], replies
    )
    assert result.stdout == "9\n"
    first, second = (parse_qs(urlsplit(target.split()[1]).query) for target, _ in asked)
    assert json.loads(first["where"][0]) == [["flights", ">", 100], ["x", "is_null"]]
    assert json.loads(first["prefix"][0]) == ["UA"]
    assert second == {**first, "cursor": ["sc1.a"]}
