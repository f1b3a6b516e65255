"""What a node, or a router, answers of a checkpoint of every kind of state, in every call, against Spark's reader."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any
from urllib.parse import quote

from tests.support.cluster.served_node import Served
from tests.support.oracle.changed import assert_changed
from tests.support.oracle.exported import assert_exported
from tests.support.oracle.json import as_text
from tests.support.oracle.kinds import Kept, KindsCheckpoint, KindStore
from tests.support.oracle.scanned import assert_scanned, scanned
from tests.support.services.watches import Event, Watcher
from tests.support.spark.queries import wait_until

from understudy import Client
from understudy.sql.output import json_of
from understudy.sql.session import SqlSession

OF_AN_ANSWER = frozenset(
    {"status", "store", "key", "partition", "version", "committed_at", "watermark", "lag", "served_by", "position"}
    | {"next_cursor"}
)
"""Members that do not say what was found."""
LISTS = {"session": "sessions", "join-side": "rows"}


def wait_for_last(served: Served, oracle: KindsCheckpoint) -> None:
    wait_until(lambda: not served.not_ready() and _shows(served, oracle), what="the last version")


def _shows(served: Served, oracle: KindsCheckpoint) -> bool:
    stores: Any = served.lag()["stores"]
    replicas = [replica for store in stores for replica in store["partitions"]]
    return len(stores) == len(oracle.stores) and all(
        replica["current_offset_position"] == oracle.last and replica["offset_lag"] == 0 for replica in replicas
    )


def assert_every_call(served: Served, oracle: KindsCheckpoint) -> dict[str, list[dict[str, Any]]]:
    """Every call, by itself and by the Python client, says what Spark's reader has. Return the rows of each store."""
    assert served.get("/v1/stores").body["not_served"] == []
    assert_changed(served, oracle)
    for version in (None, oracle.versions[0]):
        assert_several(oracle, served, version)
    rows = {}
    with Client(f"http://127.0.0.1:{served.port}") as client, SqlSession(client) as session:
        session.refresh()
        for store in oracle.stores.values():
            for version in (None, *oracle.versions):
                assert_batch(oracle, store, served, version=version)
            first, last = store.kept[oracle.versions[0]][-1], store.kept[oracle.last][0]
            reply = served.look_up(last.key, store=store.name)
            assert_answer(oracle, store, last, {"status": reply.status, **reply.body})
            for kept in (first, last):
                assert_history(oracle, store, kept.key, served)
            with Watcher(served.port, watch_target(store, last)) as watched:
                assert_snapshot(watched.take(), last)
            rows[store.name] = scanned(served, store.name, limit="7")
            assert_scanned(rows[store.name], store, oracle.last)
            counted = served.get(f"/v1/stores/{store.name}/count").body
            assert (counted["count"], counted["next_cursor"]) == (len(rows[store.name]), None)
            assert_exported(served, store.name, rows[store.name], oracle.last)
            if store.operator in ("sessionWindowStateStoreSaveExec", "stateStoreSave"):
                assert_windows(served, store, store.kept[oracle.last])
            _assert_client(client, session, store, last, rows[store.name])
    return rows


def _assert_client(
    client: Client, session: SqlSession, store: KindStore, kept: Kept, rows: list[dict[str, Any]]
) -> None:
    of_client = client.store(store.name)
    found = of_client.get(*kept.key)
    assert as_text({name: found.raw[name] for name in kept.said}) == as_text(kept.said)
    assert [each.raw for each in of_client.scan()] == rows
    assert of_client.count().count == len(rows)
    columns = session.tables[store.name].columns
    with session.run(f'select * from "{store.name}"') as answer:
        table = answer.table()
    cells = [[json_of(cell) for cell in column] for column in table.columns]
    assert sorted(map(as_text, zip(*cells, strict=True))) == sorted(
        as_text([reduce(_member, column.path, row) for column in columns]) for row in rows
    )


def _member(value: Any, name: str) -> Any:
    return None if value is None else value.get(name)


def assert_windows(served: Served, store: KindStore, every: list[Kept]) -> None:
    """The windows of a key are its sessions, or those of the keys that differ from it by their window alone."""
    if store.kind == "session":
        kept = max(every, key=lambda each: len(each.said["sessions"]))
        key, expected = kept.key, [(each["start"], each["end"], each["value"]) for each in kept.said["sessions"]]
    else:
        key = every[0].key[1:]
        of_key: list[tuple[Any, Any]] = [(each.key[0], each.said["value"]) for each in every if each.key[1:] == key]
        expected = sorted(((at["start"], at["end"], value) for at, value in of_key), key=lambda each: str(each[0]))
    reply: Any = served.get(f"/v1/stores/{store.name}/windows?key={quote(json.dumps(key))}").body
    found = [(each["start"], each["end"], each["value"]) for each in reply["windows"]]
    assert (as_text(found), reply["next_cursor"]) == (as_text(expected), None)
    assert found


def assert_several(oracle: KindsCheckpoint, served: Served, version: int | None) -> None:
    """Several stores are read at one version, and so by a lease."""
    at = version or oracle.last
    reads = [
        {"store": store.name, "keys": [kept.key for kept in store.kept[at][:20]]} for store in oracle.stores.values()
    ]
    named = {} if version is None else {"version": version}
    leased = served.post("/v1/snapshots", json.dumps(named).encode())
    assert (leased.status, leased.body["version"]) == (201, at), leased
    for asked in (named, {"snapshot": leased.body["snapshot"]}):
        reply = served.post("/v1/read", json.dumps({"reads": reads, **asked}).encode())
        assert (reply.status, reply.body["version"]) == (200, at), reply
        read: Any = reply.body["reads"]
        for store, answers in zip(oracle.stores.values(), read, strict=True):
            assert answers["store"] == store.name
            for kept, answer in zip(store.kept[at][:20], answers["results"], strict=True):
                assert_answer(oracle, store, kept, answer, version=at)
    again = served.post("/v1/read", json.dumps({"reads": reads, "snapshot": reply.body["snapshot"]}).encode())
    assert again.body["version"] == at


def assert_history(oracle: KindsCheckpoint, store: KindStore, of_key: list[object], served: Served) -> None:
    """The history of a key is what Spark's reader has of it at each version."""
    key, first = json.dumps(of_key), oracle.versions[0]
    reply = served.get(f"/v1/stores/{store.name}/history?key={quote(key)}&from={first}")
    assert (reply.status, reply.body["from"], reply.body["to"]) == (200, first, oracle.last), reply
    said: Any = reply.body["versions"]
    by_version = {v: [k.said for k in store.kept[v] if json.dumps(k.key) == key] for v in oracle.versions}
    told: Any = None
    for version in oracle.versions:
        told = next((each for each in said if each["version"] == version), told)
        expected = by_version[version][0] if by_version[version] else {"found": False}
        assert as_text(_said(told)) == as_text(expected), f"{store.operator} {key} at {version}"


def watch_target(store: KindStore, kept: Kept) -> str:
    return f"{store.name}/watch?key={quote(json.dumps(kept.key))}"


def assert_snapshot(event: Event, kept: Kept) -> None:
    """The first event of a watch is what Spark's reader has."""
    assert (event.kind, event.data["partition"]) == ("snapshot", kept.partition)
    assert as_text(_said(event.data)) == as_text(kept.said)


def assert_batch(oracle: KindsCheckpoint, store: KindStore, served: Served, *, version: int | None = None) -> None:
    kept, bounds = store.kept[version or oracle.last], {} if version is None else {"version": version}
    answers = served.look_up_all([each.key for each in kept], store=store.name, **bounds)
    for each, answer in zip(kept, answers, strict=True):
        assert_answer(oracle, store, each, answer, version=version)


def assert_answer(
    oracle: KindsCheckpoint, store: KindStore, kept: Kept, answer: dict[str, Any], *, version: int | None = None
) -> None:
    """An answer is what Spark's reader says of the key, and where it says that it lies."""
    assert answer["status"] == 200, f"{store.operator} {kept.key}: {answer}"
    assert as_text(_said(answer)) == as_text(kept.said), f"{store.operator} {kept.key}"
    assert as_text(list(answer["key"].values())) == as_text(kept.key)
    assert (answer["partition"], answer["version"]) == (kept.partition, version or oracle.last)
    assert answer.get("next_cursor", "no list") == (None if store.kind in LISTS else "no list")


def _said(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in OF_AN_ANSWER}


class WatchedStore:
    """A watch of every key that a store has at the last version. It has taken what the store holds."""

    def __init__(self, served: Served, store: KindStore, version: int) -> None:
        self.store, self.version = store, version
        self.kept = {as_text(kept.key): kept for kept in store.kept[version]}
        body = {"keys": [kept.key for kept in self.kept.values()]}
        self.watcher = Watcher(served.port, f"{store.name}/watch", body)
        for _ in self.kept:
            event = self.watcher.take()
            assert_snapshot(event, self.kept[_key(event)])

    def close(self) -> None:
        self.watcher.close()

    def assert_next(self, later: KindStore) -> int:
        """Each key that the next version changes comes once, as Spark's reader has it. Return how many."""
        said = {as_text(kept.key): kept.said for kept in later.kept[self.version + 1]}
        changed = {key for key, kept in self.kept.items() if _lasting(said.get(key, GONE)) != _lasting(kept.said)}
        seen = set[str]()
        while not changed <= seen:
            event = self.watcher.take()
            assert _key(event) not in seen, event
            seen.add(_key(event))
            found = said.get(_key(event), GONE)
            assert (event.kind, event.version) == ("value" if found["found"] else "deleted", self.version + 1), event
            assert as_text(_said(event.data)) == as_text(found), (later.operator, event)
        return len(changed)


GONE = {"found": False}


def _key(event: Event) -> str:
    return as_text(list(event.data["key"].values()))


def _lasting(said: dict[str, Any]) -> str:
    """What only a record changes: what has expired does so by the watermark."""
    text = as_text(said)
    return text.replace('"expired": true', '"expired": false')
