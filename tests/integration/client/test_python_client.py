"""The Python client, blocking and on a loop, asks a real `understudy serve`, and real routers with nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.clients.asking import Asking, asking
from tests.support.cluster.in_process import TASKS, VERSION, Cluster, cluster
from tests.support.services.command_line import serving
from tests.support.spark.queries import wait_until

from understudy import (
    BadRequestError,
    LineageChangedError,
    Result,
    UnavailableError,
    UsageError,
    VersionGoneError,
)
from understudy.client.core import direct
from understudy.client.results import RoutingCounts
from understudy_shared.reads.tokens import decode_position

STORE = "op0"


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def module_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> HandmadeCheckpoint:
    folder = tmp_path_factory.mktemp("checkpoint")
    return HandmadeCheckpoint(folder / "checkpoint", partitions=TASKS).create().add(*range(1, VERSION + 1))


@pytest.fixture(scope="module")
def node_url(module_checkpoint: HandmadeCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving([str(module_checkpoint.path)], tmp_path_factory.mktemp("serve")) as running:
        yield running.url


@pytest.fixture(scope="module")
def known(
    module_checkpoint: HandmadeCheckpoint, module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(module_checkpoint.path, folder, module_redis.url, nodes=2, routers=2) as running:
        running.wait_to_rest(copies=2, version=VERSION)
        yield running


ASKED = [("sync", "a node"), ("async", "routers"), ("sync", "nodes directly")]
"""Each server by one of the two shells, which share all but how they wait (test_surface.py compares them)."""


@pytest.fixture(params=ASKED, ids=" ".join)
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    """A client of a node that holds everything, of the routers of a cluster, or of its nodes."""
    kind, servers = request.param
    if servers == "a node":
        urls: Any = request.getfixturevalue("node_url")
    else:
        urls = [f"http://127.0.0.1:{each.port}" for each in request.getfixturevalue("known").routers]
    is_direct = servers == "nodes directly"
    monkeypatch.setattr(direct, "JITTER_S", 0.0)
    with asking(kind, urls, routing="direct" if is_direct else "routers") as asked:
        yield asked


def get(client: Asking, *key: Any, store: str = STORE, **bounds: Any) -> Result[Any]:
    found: Result[Any] = client.ask(lambda each: each.store(store).get(*key, **bounds))
    return found


def test_a_key_is_found_with_all_that_the_answer_says(client: Asking) -> None:
    result = get(client, "born-1", max_staleness=timedelta(hours=1), max_lag=100)
    assert result
    assert result.key == {"word": "born-1"}
    assert result.value == {"count": 2, "total": 2_000_000}
    assert result.version == VERSION
    assert result.lag.offset_lag == 0
    assert result.served_by.host == "127.0.0.1"
    assert result.committed_at is not None
    assert datetime.now(UTC) - result.committed_at < timedelta(days=1)
    assert decode_position(result.position).version == VERSION


def test_a_key_that_is_not_there_is_absent_and_no_error(client: Asking) -> None:
    keys: list[Any] = ["", None, "a/b", "..", "ä", "x" * 20_000, {"word": "no"}, "%2F", "a b?c#d"]
    for key in keys:
        result = get(client, key)
        assert not result
        assert result.value is None
        assert result.key == {"word": key["word"] if isinstance(key, dict) else key}


def test_many_keys_come_in_their_order_in_as_many_requests_as_it_takes(client: Asking) -> None:
    keys = ["born-0", {"word": "born-1"}, ["born-2"], *(f"no-{at}" for at in range(2100)), "born-0"]
    results = client.ask(lambda each: each.store(STORE).get_many(keys))
    assert [each.found for each in results] == [True, True, True, *[False] * 2100, True]
    assert [each.value["count"] for each in results if each] == [3, 2, 1, 3]
    assert results[0].lag.offset_lag == 0


def test_a_version_is_named_for_one_read_or_for_all(client: Asking) -> None:
    assert get(client, "born-0", version=2).value["count"] == 2
    named = client.ask(lambda each: each.at(version=2).store(STORE).get("born-0"))
    assert (named.version, named.value["count"]) == (2, 2)
    now = client.ask(lambda each: each.at(datetime.now(UTC)).store(STORE).get_many(["born-0"]))
    assert now[0].version == VERSION
    with pytest.raises(VersionGoneError):
        client.ask(lambda each: each.at(datetime(2000, 1, 1, tzinfo=UTC)).store(STORE).get("born-0"))


def test_rows_come_in_pages_of_one_version(client: Asking, module_checkpoint: HandmadeCheckpoint) -> None:
    counts = module_checkpoint.counts(VERSION)
    rows = client.ask(lambda each: each.store(STORE).scan(page_size=7))
    assert {row.key["word"]: row.value["count"] for row in rows} == counts
    assert len(rows) == len(counts)
    pages = client.ask(lambda each: each.store(STORE).scan(page_size=7).pages())
    assert {page.version for page in pages} == {VERSION}
    assert len(pages) > 1
    big = client.ask(lambda each: each.store(STORE).scan(where=[["count", ">", 2]], order="key", fields=["count"]))
    assert [row.value for row in big] == [{"count": count} for count in counts.values() if count > 2]
    one = client.ask(lambda each: each.at(version=1).store(STORE).scan(prefix=["born-0"]))
    assert [row.value["count"] for row in one] == [1]


def scanned(client: Any, **question: Any) -> Any:
    return client.store(STORE).scan(**question)


def pages_of(client: Any, **question: Any) -> Any:
    return scanned(client, **question).pages()


def test_a_limit_is_the_number_of_rows_whatever_the_size_of_pages(
    client: Asking, module_checkpoint: HandmadeCheckpoint
) -> None:
    counts = module_checkpoint.counts(VERSION)
    by_key = sorted(counts)
    for limit, size in ((1, None), (3, None), (7, 2), (6, 3), (len(counts), 5), (len(counts) + 1, None), (5000, None)):
        asked: dict[str, Any] = {"limit": limit, "page_size": size}
        rows = client.ask(partial(scanned, order="key", **asked))
        assert [row.key["word"] for row in rows] == by_key[:limit]
        assert len(client.ask(partial(pages_of, order="key", **asked))) == 1, "a top N reads the keys once"
        pages = client.ask(partial(pages_of, **asked))
        assert sum(len(page.items) for page in pages) == min(limit, len(counts))
    with pytest.raises(UsageError, match="limit=0"):
        client.ask(lambda each: each.store(STORE).scan(limit=0))


def table_of(client: Any, **question: Any) -> Any:
    return scanned(client, **question).to_arrow()


def test_rows_are_a_frame_in_one_step_by_an_export_or_by_pages(
    client: Asking, module_checkpoint: HandmadeCheckpoint
) -> None:
    counts = module_checkpoint.counts(VERSION)
    for question in ({}, {"order": "key"}):  # the second one has no export
        table = client.ask(partial(table_of, **question))
        assert table.column_names == ["word", "count", "total"], "a problem, only where a row has one"
        assert dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True)) == counts
        assert table.num_rows == len(counts)
    at_1 = client.ask(lambda each: each.at(version=1).store(STORE).scan(prefix=["born-0"], fields=["count"]).to_dicts())
    assert at_1 == [{"word": "born-0", "count": 1}]
    of_pandas = client.ask(lambda each: each.store(STORE).top(2, by="count").to_pandas())
    of_polars = client.ask(lambda each: each.store(STORE).scan(where=[["count", ">", 2]]).to_polars())
    assert list(of_pandas["count"]) == sorted(counts.values(), reverse=True)[:2]
    assert sorted(of_polars["count"]) == sorted(count for count in counts.values() if count > 2)


def changes_since(since: Any, client: Any) -> Any:
    return client.store(STORE).changes(since=since)


def test_a_time_stands_where_a_version_does(client: Asking, module_checkpoint: HandmadeCheckpoint) -> None:
    changed = client.ask(lambda each: each.store(STORE).changes(1))
    assert len(changed) > VERSION
    sinces: tuple[Any, ...] = ("1d", timedelta(hours=2), "2000-01-01T00:00:00Z", datetime(2000, 1, 1, tzinfo=UTC))
    for since in sinces:
        found = client.ask(partial(changes_since, since))
        assert [each.raw for each in found] == [each.raw for each in changed]
    assert client.ask(lambda each: each.store(STORE).changes(since="0s")) == []
    assert get(client, "born-0", at="-1ms").version == get(client, "born-0", at=timedelta()).version == VERSION
    with pytest.raises(VersionGoneError):
        get(client, "born-0", at="-1d")
    with pytest.raises(BadRequestError, match="or a time ago"):
        get(client, "born-0", at="1 minute")
    few = client.ask(lambda each: each.store(STORE).scan(where="count > 2 and word in ('born-0', 'no')"))
    assert [row.key["word"] for row in few] == ["born-0"]
    with pytest.raises(BadRequestError, match="at character 8: a value is expected"):
        client.ask(lambda each: each.store(STORE).scan(where="count >"))


def test_the_history_of_a_key_tells_each_change(client: Asking) -> None:
    versions = client.ask(lambda each: each.store(STORE).history("born-1", first=1))
    assert [(each.version, each.found) for each in versions] == [(1, False), (2, True), (3, True)]
    assert [each.value["count"] for each in versions if each] == [1, 2]
    assert [each.version for each in client.ask(lambda each: each.store(STORE).history("born-1", last=2))][-1] == 2


async def _first(watch: Any, count: int) -> list[Any]:
    return [await anext(watch) for _ in range(count)]


def first(watch: Any, count: int) -> Any:
    return _first(watch, count) if hasattr(watch, "__anext__") else [next(watch) for _ in range(count)]


def test_a_watch_begins_with_the_present_value_or_behind_a_position(client: Asking) -> None:
    position = client.ask(lambda each: each.at(version=1).store(STORE).get("born-1")).position

    (event,) = client.ask(lambda each: first(each.store(STORE).watch("born-1"), 1))
    assert (event.kind, event.value["count"], event.version) == ("snapshot", 2, VERSION)
    events = client.ask(lambda each: first(each.store(STORE).watch("born-1", position=position), 2))
    assert [(each.kind, each.version, each.value["count"]) for each in events] == [("value", 2, 1), ("value", 3, 2)]
    many = client.ask(lambda each: first(each.store(STORE).watch_many(["born-0", ["born-2"], "no"]), 3))
    assert sorted((each.key["word"], each.found) for each in many) == [
        ("born-0", True),
        ("born-2", True),
        ("no", False),
    ]


def test_all_keys_with_a_prefix_are_watched_from_their_beginning_or_behind_a_position(client: Asking) -> None:
    position = client.ask(lambda each: each.at(version=1).store(STORE).get("born-1")).position

    (event,) = client.ask(lambda each: first(each.store(STORE).watch(prefix=["born-1"]), 1))
    assert (event.kind, event.key, event.value["count"]) == ("snapshot", {"word": "born-1"}, 2)
    events = client.ask(lambda each: first(each.store(STORE).watch(prefix=["born-1"], position=position), 2))
    assert [(each.kind, each.version, each.value["count"]) for each in events] == [("value", 2, 1), ("value", 3, 2)]
    assert decode_position(events[-1].position).version == VERSION
    with pytest.raises(BadRequestError, match="prefix"):
        client.ask(lambda each: first(each.store(STORE).watch(prefix=[]), 1))


def test_the_changes_of_versions_are_told_in_their_order(client: Asking, module_checkpoint: HandmadeCheckpoint) -> None:
    told = client.ask(lambda each: each.store(STORE).changes(2, versions=True))
    for version in (2, 3):
        now, before = module_checkpoint.counts(version), module_checkpoint.counts(version - 1)
        changes = [each for each in told if each.version == version]
        assert changes[-1].kind == "version"
        assert (changes[-1].changes, decode_position(changes[-1].position).version) == (len(changes) - 1, version)
        assert {each.key["word"]: each.value["count"] for each in changes[:-1]} == {
            word: count for word, count in now.items() if before.get(word) != count
        }
    assert [each.version for each in told] == sorted(each.version for each in told)
    (one,) = client.ask(lambda each: each.store(STORE).changes(2, 2, prefix=["born-1"], fields=["count"]))
    assert (one.kind, one.value, one.version) == ("value", {"count": 1}, 2)
    with pytest.raises(UnavailableError):
        client.ask(lambda each: each.store(STORE).changes(1, 99, timeout=1))


def test_stores_are_read_at_one_version(client: Asking) -> None:
    reads = client.ask(lambda each: each.read({STORE: ["born-0", ["no"], {"nope": 1}]}))
    first, absent, wrong = reads[STORE]
    assert (reads.version, first.value["count"], absent.found) == (VERSION, 3, False)
    assert wrong.error is not None
    again = client.ask(lambda each: each.store(STORE).get("born-0", snapshot=reads.snapshot))
    assert again.version == VERSION


def test_a_snapshot_is_leased_for_a_block_and_released_behind_it(client: Asking) -> None:
    with client.entered(lambda each: each.snapshot(ttl=timedelta(minutes=5))) as held:
        assert held.version == VERSION
        assert [each["version"] for each in client.snapshots()] == [VERSION]
        assert client.ask(lambda _: held.store(STORE).get("born-0")).version == VERSION
        assert len(client.ask(lambda _: held.store(STORE).scan(page_size=5))) > 5
        assert client.ask(lambda _: held.read({STORE: ["born-0"]}))[STORE][0].found
        with pytest.raises(BadRequestError, match="snapshot"):
            client.ask(lambda _: held.store(STORE).get("born-0", version=1))
    assert client.snapshots() == []


def test_the_answers_of_a_session_never_go_back_between_servers(kind: str, known: Cluster) -> None:
    """Q51."""
    urls = [f"http://127.0.0.1:{each.port}" for each in known.routers]
    with asking(kind, urls, session=True) as client:
        first = get(client, "born-0")
        assert client.client.position == first.position
        ahead = decode_position(first.position)
        future = type(ahead)(ahead.application_id, ahead.lineage, VERSION + 1, None).encode()
        client.client._driver.state.position.observe(future)
        with pytest.raises(UnavailableError):
            get(client, "born-0", timeout=1)
        assert get(client, "born-0", version=2).version == 2, "a version that is named needs no position"
        gone = type(ahead)(ahead.application_id, type(ahead.lineage)("another"), 1, None).encode()
        client.client._driver.state.position.observe(gone)
        with pytest.raises(LineageChangedError):
            get(client, "born-0")
        assert get(client, "born-0").found, "the position of the old history is dropped"


def test_lookups_go_to_the_nodes_that_hold_the_keys_and_say_the_same(
    kind: str, known: Cluster, module_checkpoint: HandmadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "JITTER_S", 0.0)
    counts = module_checkpoint.counts(VERSION)
    urls = [f"http://127.0.0.1:{each.port}" for each in known.routers]
    with asking(kind, urls, routing="direct", session=True) as client:
        for word, count in counts.items():
            result = get(client, word, max_staleness=timedelta(hours=1))
            assert (result.value["count"], result.served_by.role) == (count, "active")
        results = client.ask(lambda each: each.store(STORE).get_many([*counts, "absent"]))
        assert [each.value["count"] for each in results[:-1]] == [*counts.values()]
        assert not results[-1].found
        assert len({each.served_by.port for each in results}) == len(known.nodes)
        assert client.counts == RoutingCounts(2 * len(counts) + 1, {}, 1)
        assert get(client, "born-0", require_active=True).found
        assert client.counts.routed == {"bound": 1}


def test_threads_share_a_client(node_url: str) -> None:
    with asking("sync", node_url, session=True) as client:
        failures: list[Exception] = []

        def reads() -> None:
            try:
                for _ in range(50):
                    assert get(client, "born-0").value["count"] == VERSION
                    assert client.ask(lambda each: each.store(STORE).get_many(["born-1"]))[0].key == {"word": "born-1"}
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=reads) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_a_router_that_leaves_is_replaced_by_another(kind: str, known: Cluster) -> None:
    with asking(kind, [f"http://127.0.0.1:{each.port}" for each in known.routers]) as client:
        assert get(client, "born-0").found
        for index in (0, 1):
            known.end_router(index)
            assert get(client, "born-0").found
            known.restart_router(index)
            wait_until(lambda: not known.routers[index].not_ready(), what="the router that came back")  # noqa: B023
