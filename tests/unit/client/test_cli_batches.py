"""`understudy lookup` of many keys: how they are sent, in which order they are shown, how the command exits."""

from __future__ import annotations

import json

import orjson
import pytest
from tests.support.services.canned_server import Canned
from tests.support.services.reading_commands import ABSENT, FOUND, REFUSED, batch, problem, run

from understudy.commands.reading import keys_of_lines
from understudy.terminal.exits import CommandError, ExitCode
from understudy_shared.reads.bounds import MAX_BATCH_KEYS


def test_many_keys_are_asked_in_batches_in_their_order() -> None:
    count = 2 * MAX_BATCH_KEYS + 1
    stdin = b"".join(b"[%d]\n\n" % number for number in range(count))
    replies = [batch(ABSENT, *[FOUND] * (MAX_BATCH_KEYS - 1)), batch(*[FOUND] * MAX_BATCH_KEYS), batch(FOUND)]
    result, asked = run(["lookup", "s", "--stdin", "--json"], replies, stdin=stdin)
    assert [number for _, body in asked for (number,) in json.loads(body)["keys"]] == list(range(count))
    assert [len(json.loads(body)["keys"]) for _, body in asked] == [MAX_BATCH_KEYS, MAX_BATCH_KEYS, 1]
    assert len(result.stdout.splitlines()) == count
    assert result.exit_code == ExitCode.ABSENT


@pytest.mark.parametrize(
    ("items", "exit_code"),
    [
        ((FOUND, FOUND), ExitCode.OK),
        ((FOUND, ABSENT), ExitCode.ABSENT),
        ((ABSENT, problem("bad-key", 400).body), ExitCode.USAGE),
        ((problem("bad-key", 400).body, REFUSED), ExitCode.REFUSED),
    ],
    ids=["found", "absent", "bad-key", "refused"],
)
def test_a_batch_exits_with_the_highest_of_its_keys(items: tuple[bytes, bytes], exit_code: ExitCode) -> None:
    result, _ = run(["lookup", "s", '["N1"]', "[2]"], [batch(*items)])
    assert result.exit_code == exit_code
    assert len(result.stdout.splitlines()) == 2 + len(items)


def test_a_problem_in_a_batch_stands_beside_the_key_that_was_asked() -> None:
    result, _ = run(["lookup", "s", '["N1"]', "[2]"], [batch(FOUND, problem("bad-key", 400).body)])
    lines = [line.split() for line in result.stdout.splitlines()[2:]]
    assert lines[0][:3] == ['{"tailnum":"N1"}', "found", '{"count":15,"avg":1.0}']
    assert lines[1] == ["[2]", "bad-key", "a", "bad-key"]


@pytest.mark.parametrize("options", [[], ["--json"], ["--raw"]], ids=["a table", "json", "raw"])
def test_a_compact_answer_is_asked_for_and_shown_as_a_long_one(options: list[str]) -> None:
    results = [orjson.loads(batch(item).body)["results"][0] for item in (FOUND, ABSENT, problem("bad-key", 400).body)]
    shared = ("partition", "version", "committed_at", "watermark", "lag", "served_by", "position")
    reads = [{name: results[0][name] for name in shared}]
    own = [{name: item[name] for name in item if name not in (*shared, "store")} for item in results]
    compact = {"store": "aircraft", "reads": reads, "results": [{**own[0], "read": 0}, {**own[1], "read": 0}, own[2]]}
    shown = [
        run(["lookup", "s", '["N1"]', '["N2"]', "[3]", *options], [reply])
        for reply in (batch(FOUND, ABSENT, problem("bad-key", 400).body), Canned(orjson.dumps(compact)))
    ]
    assert shown[0][0].stdout == shown[1][0].stdout
    assert [asked[0][0] for _, asked in shown] == ["POST /v1/stores/s/lookup?compact=true"] * 2


def test_keys_before_a_line_that_is_no_json_are_asked_and_the_line_is_named() -> None:
    result, asked = run(["lookup", "s", "--stdin", "--json"], [batch(FOUND, FOUND)], stdin=b"[1]\n[2]\n[3\n[4]\n")
    assert json.loads(asked[0][1])["keys"] == [[1], [2]]
    assert len(result.stdout.splitlines()) == 2
    assert result.exit_code == ExitCode.USAGE
    assert "line 3 of standard input" in result.stderr


def test_a_line_that_is_not_utf8_is_named() -> None:
    with pytest.raises(CommandError, match="line 2"):
        list(keys_of_lines([b"[1]\n", b'["\xff"]\n']))
