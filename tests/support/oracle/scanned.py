"""Scans as a reader makes them: page after page, to the end; and what they must be by what Spark's reader says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from tests.support.cluster.served_node import Served
from tests.support.oracle.custom_state import in_order
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import KindStore

MAX_PAGES = 10_000


def pages(served: Served, store: str, call: str = "scan", **members: object) -> Iterator[dict[str, Any]]:
    """Every page of a question. `prefix` and `where` are given as they are in JSON."""
    asked = dict(members)
    for _ in range(MAX_PAGES):
        page = served.get(scan_target(store, call, **asked))
        assert page.status == 200, page
        yield page.body
        asked["cursor"] = page.body["next_cursor"]
        if asked["cursor"] is None:
            return
    raise AssertionError(f"{store}: more than {MAX_PAGES} pages")


def scan_target(store: str, call: str = "scan", **members: object) -> str:
    """The target of a scan; what is no text is sent as JSON."""
    texts = {name: each if isinstance(each, str) else json.dumps(each) for name, each in members.items()}
    query = "&".join(f"{name}={quote(text, safe='')}" for name, text in texts.items())
    return f"/v1/stores/{store}/{call}?{query}"


def scanned(served: Served, store: str, **members: object) -> list[dict[str, Any]]:
    """All rows of a question, which are of one version."""
    found: list[dict[str, Any]] = []
    of: set[object] = set()
    for page in pages(served, store, "scan", **members):
        found += page["rows"]
        of.add((page["version"], page["committed_at"], page["position"]))
    assert len(of) == 1, f"pages of several versions: {of}"
    return found


def assert_scanned(rows: list[dict[str, Any]], store: KindStore, version: int) -> None:
    """Rows are what Spark's reader has at a version, each key once."""
    found = {as_text(list(row["key"].values())): _said(row) for row in rows}
    assert len(found) == len(rows), f"{store.name}: a key twice"
    expected = {as_text(kept.key): _said(kept.said) for kept in store.kept[version]}
    assert found == expected, store.operator


def assert_sought(served: Served, store: KindStore, version: int) -> None:
    """A prefix of all key columns finds its row, of however many records it is, by looking at one key (Q6)."""
    described: Any = served.get(f"/v1/stores/{store.name}").body
    for kept in [each for each in store.kept[version] if each.key][:5]:
        (page,) = pages(served, store.name, prefix=kept.key, explain=True)
        (row,) = page["rows"]
        assert _said(row) == _said(kept.said), (store.operator, kept.key)
        partitions = range(described["partitions"]) if described["placement"] == "scattered" else [kept.partition]
        explained = {"access": "seek", "returned": 1, "looked_at": 1, "partitions": list(partitions)}
        assert page["explain"] == explained


def _said(row: dict[str, Any]) -> str:
    """What a row says of its key, without what only lookups and pages say."""
    shown = {name: each for name, each in row.items() if name not in {"key", "found", "next_cursor"}}
    return as_text(in_order(shown))
