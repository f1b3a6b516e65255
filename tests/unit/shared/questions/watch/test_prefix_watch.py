"""What a watcher of a prefix is sent: each change once, equal values never, and a count of what it missed."""

from __future__ import annotations

from typing import Any

import orjson

from understudy_shared.questions.watch.choice import PrefixWatch


def change(version: int, key: str, value: int | None) -> dict[str, Any]:
    said = {} if value is None else {"value": {"n": value}}
    return {"version": version, "partition": 0, "found": value is not None, "key": {"k": key}, **said}


def told(watch: PrefixWatch) -> list[tuple[str, str, Any]]:
    found = []
    for event in watch.tell():
        kind, _, data = event.decode().removeprefix("event: ").partition("\ndata: ")
        said = orjson.loads(data)
        found.append((kind, said["key"]["k"], said.get("changes", said.get("value"))))
    return found


def take(watch: PrefixWatch, *changes: dict[str, Any]) -> list[tuple[str, str, Any]]:
    for each in changes:
        watch.changed(each, None, "us1.x")
    return told(watch)


def test_equal_values_and_deletions_of_what_is_not_there_are_no_events() -> None:
    watch = PrefixWatch("s", knows_all=True)
    watch.present({"key": {"k": "a"}, "value": {"n": 1}}, 0, {"version": 1})
    assert take(watch, change(2, "a", 1), change(2, "b", None)) == []
    assert take(watch, change(3, "a", 2), change(3, "b", 1)) == [("value", "a", {"n": 2}), ("value", "b", {"n": 1})]
    assert take(watch, change(4, "a", None), change(4, "b", 1)) == [("deleted", "a", None)]
    assert take(watch, change(5, "a", 2)) == [("value", "a", {"n": 2})]


def test_one_that_is_far_behind_gets_the_last_change_and_how_many_it_missed() -> None:
    watch = PrefixWatch("s", knows_all=True)
    changes = [change(version, "a", version) for version in range(2, 6)]
    assert take(watch, *changes, change(5, "b", 1)) == [
        ("coalesced", "a", 3),
        ("value", "a", {"n": 5}),
        ("value", "b", {"n": 1}),
    ]
    assert watch.coalesced == 3
    assert dict(watch.told) == {"coalesced": 1, "value": 2}


def test_one_that_came_back_is_sent_deletions_of_keys_that_it_may_have_seen() -> None:
    assert take(PrefixWatch("s", knows_all=False), change(2, "a", None)) == [("deleted", "a", None)]
