"""`understudy windows`: pages are followed to the end, and a key is words, or one JSON array."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

from tests.support.services.canned_server import Canned
from tests.support.services.reading_commands import run


def page(*starts: str, cursor: str | None = None) -> Canned:
    windows = [{"start": start, "end": start, "state": "open", "value": {}} for start in starts]
    return Canned(
        json.dumps(
            {"store": "s", "key": {"airport": "", "plane": ""}, "version": 7, "windows": windows, "next_cursor": cursor}
        ).encode()
    )


def test_the_windows_of_every_page_are_printed_as_lines() -> None:
    options = ["--from", "2013-01-01T05:00:00Z", "--by", "overlap", "--version", "7"]
    result, asked = run(["windows", "hours", "JFK", "a-b", *options], [page("1", "2", cursor="sc1.a"), page("3")])
    assert [json.loads(line)["start"] for line in result.stdout.splitlines()] == ["1", "2", "3"]
    first, second = (urlsplit(target.split()[1]) for target, _ in asked)
    assert first.path == "/v1/stores/hours/windows/JFK/a-b"
    wanted = {"from": ["2013-01-01T05:00:00Z"], "by": ["overlap"], "version": ["7"], "limit": ["1000"]}
    assert parse_qs(first.query) == wanted
    assert parse_qs(second.query) == {**wanted, "cursor": ["sc1.a"]}


def test_a_key_that_is_no_words_is_one_json_array() -> None:
    for words, key in ((["[null]"], "[null]"), ([], "[]")):
        result, asked = run(["windows", "hours", *words, "--limit", "1", "--json"], [page("1", cursor="sc1.a")])
        assert json.loads(result.stdout)["next_cursor"] == "sc1.a"
        target = urlsplit(asked[0][0].split()[1])
        assert (target.path, parse_qs(target.query)["key"]) == ("/v1/stores/hours/windows", [key])
        assert len(asked) == 1
