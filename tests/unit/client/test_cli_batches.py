"""`understudy lookup` of many keys: how they are sent, in which order they are shown, how the command exits."""

from __future__ import annotations

import json

import pytest
from tests.support.services.reading_commands import ABSENT, FOUND, REFUSED, batch, problem, run

from understudy.terminal.exits import ExitCode
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


def test_keys_before_a_line_that_is_no_json_are_asked_and_the_line_is_named() -> None:
    result, asked = run(["lookup", "s", "--stdin", "--json"], [batch(FOUND, FOUND)], stdin=b"[1]\n[2]\n[3\n[4]\n")
    assert json.loads(asked[0][1])["keys"] == [[1], [2]]
    assert len(result.stdout.splitlines()) == 2
    assert result.exit_code == ExitCode.USAGE
    assert "line 3 of standard input" in result.stderr
