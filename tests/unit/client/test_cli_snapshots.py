"""`understudy snapshot`: prints a token for other commands, lists what is held, and gives back."""

from __future__ import annotations

import json

from tests.support.page.overviews import lease
from tests.support.services.canned_server import Canned
from tests.support.services.reading_commands import run

GRANTED = Canned(json.dumps({"snapshot": "ul1.abc", "version": 418}).encode(), 201)


def listing(*leases: dict[str, object], unanswered: tuple[str, ...] = ()) -> Canned:
    return Canned(json.dumps({"snapshots": leases, "unanswered": unanswered}).encode())


def test_create_prints_the_token_alone_and_sends_what_was_given() -> None:
    result, asked = run(["snapshot", "create"], [GRANTED])
    assert (result.stdout, asked) == ("ul1.abc\n", [("POST /v1/snapshots", b"{}")])
    arguments = ["--store", "a", "--store", "b", "--version", "0", "--ttl-s", "300", "--json"]
    result, asked = run(["snapshot", "create", *arguments], [GRANTED])
    assert json.loads(result.stdout)["version"] == 418
    assert json.loads(asked[0][1]) == {"version": 0, "ttl_s": 300, "stores": ["a", "b"]}


def test_the_list_says_what_leases_hold_and_which_nodes_did_not_answer() -> None:
    result, asked = run(["snapshot", "list"], [listing(lease(), unanswered=("node-3",))])
    assert asked == [("GET /admin/v1/snapshots", b"")]
    for part in ("410", "1500000 B", "K-pd12_QxABc", "no answer of node-3"):
        assert part in result.stdout
    assert run(["snapshot", "list"], [listing()])[0].stdout.strip() == "no snapshot lease is held"


def test_release_ends_a_lease() -> None:
    result, asked = run(["snapshot", "release", "ul1.abc"], [Canned(b"", 204)])
    assert (result.exit_code, asked) == (0, [("DELETE /v1/snapshots/ul1.abc", b"")])
