"""The two shells of the Python client have one surface, and the package brings their names without a cost."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from tests.support.clients.steps import answer, found, scripted

import understudy
from understudy.client import aio, sync
from understudy.client.aio_watch import AsyncChanges, AsyncWatch
from understudy.client.core.lookups import get, get_many
from understudy.client.core.reader import Reader, StoreReader
from understudy.client.errors import BadReplyError, BadRequestError, UsageError
from understudy.client.results import Json
from understudy.client.watch import Changes, Watch

PAIRS = [
    (sync.Client, aio.AsyncClient),
    (sync.Store, aio.AsyncStore),
    (sync.View, aio.AsyncView),
    (sync.Snapshot, aio.AsyncSnapshot),
    (sync.Pages, aio.AsyncPages),
    (Watch, AsyncWatch),
    (Changes, AsyncChanges),
]
LONGER = {"close": "aclose"}


def surface(shell: type) -> dict[str, list[str]]:
    """The public members of a class, with the names and kinds of their parameters."""
    return {
        name: [str(each).partition(":")[0] for each in inspect.signature(member).parameters.values()]
        if callable(member)
        else []
        for name, member in inspect.getmembers(shell)
        if not name.startswith("_") or name == "__init__"
    }


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_both_shells_have_the_same_methods_with_the_same_parameters(blocking: type, awaited: type) -> None:
    """Q54."""
    expected = {LONGER.get(name, name): parameters for name, parameters in surface(blocking).items()}
    assert surface(awaited) == expected


def test_each_name_of_the_package_is_there_and_costs_nothing_before_it_is_used() -> None:
    assert [name for name in understudy.__all__ if not hasattr(understudy, name)] == []
    with pytest.raises(AttributeError, match="nothing"):
        understudy.nothing  # noqa: B018
    loaded = (
        "import sys, understudy; print(sorted(sys.modules.keys() & {'asyncio', 'httpx', 'click', 'orjson', 'ssl'}))"
    )
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).strip() == "[]"
    loaded = (
        "import sys; from understudy import Client; print(sys.modules.keys() & {'asyncio', 'httpx', 'click', 'mmh3'})"
    )
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).strip() == "set()"


def batch(*items: Json) -> Json:
    shared = {name: value for name, value in found("a").items() if name not in ("store", "key", "found", "value")}
    return {"store": "words", "reads": [shared], "results": list(items)}


def test_only_the_keys_that_could_not_be_read_are_asked_for_again() -> None:
    good = {"status": 200, "key": {"word": "a"}, "found": True, "value": {"count": 1}, "read": 0}
    failed = {"status": 503, "type": "no-acceptable-replica", "title": "t", "detail": "d"}
    wrong = {"status": 400, "type": "bad-key", "title": "t", "detail": "d"}
    world = scripted(answer(batch(good, failed, wrong)), answer(batch(good)))
    store = StoreReader(Reader(world.state()), "words")
    results = world.run(get_many(store, ["a", "b", "c"], {}, world.now_s + 5))
    assert [bool(each.error) for each in results] == [False, False, True]
    assert world.sent[1].request.body == b'{"keys":[["b"]]}'
    with pytest.raises(BadRequestError):
        results[2].found  # noqa: B018


@pytest.mark.parametrize("member", ["reads", "results"])
def test_a_batch_of_something_else_than_objects_is_refused(member: str) -> None:
    world = scripted(answer({**batch({"key": {}, "found": False, "read": 0}), member: [7]}))
    store = StoreReader(Reader(world.state()), "words")
    with pytest.raises(BadReplyError, match="not objects"):
        world.run(get_many(store, ["a"], {}, world.now_s + 5))


def test_a_trace_that_is_active_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    world = scripted(answer(found("a")))
    store = StoreReader(Reader(world.state()), "words")
    world.run(get(store, ["a"], {}, world.now_s + 5))
    assert "traceparent" not in dict(world.sent[0].headers)
    with trace.use_span(NonRecordingSpan(SpanContext(0xA, 0xB, is_remote=False, trace_flags=TraceFlags(1)))):
        world.run(get(store, ["a"], {}, world.now_s + 5))
    assert dict(world.sent[1].headers)["traceparent"] == f"00-{'a':0>32}-{'b':0>16}-01"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://a",
        "http://",
        "http://a:x",
        "http://a/path",
        "http://user:secret@a",
        "http://a b",
        "http://[::1",
        "http://a:0",
    ],
)
def test_what_is_no_url_of_a_server_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        understudy.Client([url])
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [{"timeout": 0}, {"timeout": True}, {"retries": -1}, {"api_key": "two words"}, {"api_key_file": "/nowhere"}],
)
def test_a_wrong_setting_of_a_client_is_refused_with_what_to_do(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError) as raised:
        understudy.Client("http://a", **wrong)  # type: ignore[arg-type]
    assert raised.value.fix
