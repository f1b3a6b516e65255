"""Keys through an nginx that decodes, normalises and strips paths: the Python client and the command line get the value
of the key that was asked for, or an error, and never another key's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from tests.support.bus.redis_server import RedisServer
from tests.support.checkpoint import handmade_sessions
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.checkpoint.handmade_sessions import HandmadeSessions
from tests.support.clients.asking import Asking, asking
from tests.support.cluster.in_process import cluster
from tests.support.cluster.served_node import served_node
from tests.support.services import proxies

from understudy import Client, WrongKeyError
from understudy.client.sync import Store
from understudy.commands.group import cli

KEYS = (
    "a", "/", "/a", "//a", "a/", "x/../a", "./a", "a/./b", "..", ".", "...", "a//b", "keys/a",
    "%", "%2Fa", "%61", "a%", "%25", "a+b", "a b", "+", " ", "a;b", ";", "a\\b", "\\", "..\\a",
    "a?b#c", "?", "#", "a&key=b", "=", "\x00", "\x01", "\n", "\x7f", "a\tb", "ä", "日本", "😀", "é", "~a_-.b", "1:2",
    '"', "'", "[a]", "{}", "<a>", "-1", "",
)  # fmt: skip
"""A text of each kind that a proxy could touch, and those that it would make of them."""


WORDS = tuple(each for each in KEYS if each)
"""Those that a command takes as a word."""


@dataclass(frozen=True, slots=True)
class Checkpoint(HandmadeCheckpoint):
    """Counts that differ from key to key."""

    def counts(self, version: int) -> dict[str, int]:
        return {key: 100 * version + at for at, key in enumerate(KEYS)}


class Proxied(NamedTuple):
    """The address of a router and of a node with sessions, each as a proxy hands it on."""

    router: str
    sessions: str


def nginx(folder: Path, locations: str) -> AbstractContextManager[int]:
    """The port of an nginx with these locations, until the block ends."""
    return proxies.nginx(folder, f"server {{ listen 8000; {locations} }}")


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory, module_redis: RedisServer) -> Iterator[tuple[int, int]]:
    """The ports of a router over `KEYS`, and of a node over their sessions."""
    folder = tmp_path_factory.mktemp("proxied")
    counting = Checkpoint(folder / "counting").create().add(1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handmade_sessions, "VISITORS", KEYS)
        sessions = HandmadeSessions(folder / "sessions").create().add(1)
    with (
        cluster(counting.path, folder / "cluster", module_redis.url, nodes=1, routers=1) as running,
        served_node(sessions.path, folder / "node") as node,
    ):
        running.wait_to_rest(copies=1, version=2)
        node.wait_for_version(1)
        yield running.routers[0].port, node.port


LOCATIONS = {
    "decoded": "location / {{ proxy_pass http://127.0.0.1:{port}/; }}",
    "rewritten": "location / {{ rewrite ^/(.*)$ /$1 break; proxy_pass http://127.0.0.1:{port}; }}",
    "passed on": "location / {{ proxy_pass http://127.0.0.1:{port}; }}",
}
"""`rewrite` is what an ingress with a rewrite-target makes."""


@pytest.fixture(scope="module", params=LOCATIONS)
def proxied(
    request: pytest.FixtureRequest, ports: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("nginx")
    router, sessions = (LOCATIONS[request.param].format(port=port) for port in ports)
    with nginx(folder / "router", router) as first, nginx(folder / "sessions", sessions) as second:
        yield Proxied(f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}")


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, proxied: Proxied) -> Iterator[Asking]:
    with asking(request.param, proxied.router) as asked:
        yield asked


def count(key: str, version: int = 2) -> int:
    return 100 * version + KEYS.index(key)


def called(call: str, key: object, client: Any, model: type | None = None) -> Any:
    return getattr(client.store("op0", key=model), call)(key)


def test_each_key_is_found_with_its_own_value(client: Asking) -> None:
    found = [client.ask(partial(called, "get", key)) for key in KEYS]
    assert [(each.key["word"], each.value["count"]) for each in found] == [(key, count(key)) for key in KEYS]


def test_each_key_of_a_batch_is_found_with_its_own_value(client: Asking) -> None:
    found = client.ask(lambda each: each.store("op0").get_many(KEYS))
    assert [(each.key["word"], each.value["count"]) for each in found] == [(key, count(key)) for key in KEYS]


def test_each_watch_is_that_of_its_key(proxied: Proxied) -> None:
    with Client(proxied.router) as client:
        for key in KEYS:
            with client.store("op0").watch(key) as watch:
                first = next(iter(watch))
                assert (first.key["word"], first.value["count"]) == (key, count(key))
        with client.store("op0").watch_many(KEYS) as watch:
            begun = [next(watch) for _ in KEYS]
        assert sorted((each.key["word"], each.value["count"]) for each in begun) == sorted(
            (key, count(key)) for key in KEYS
        )


@pytest.mark.full
@pytest.mark.parametrize("is_prefixed", [False, True], ids=["at the root", "below a prefix"])
def test_commands_answer_for_the_key_that_was_asked_for(
    is_prefixed: bool, ports: tuple[int, int], proxied: Proxied, tmp_path: Path
) -> None:
    if not is_prefixed:
        _commands_answer(proxied)
        return
    router, sessions = (f"location /below/ {{ proxy_pass http://127.0.0.1:{port}/; }}" for port in ports)
    with nginx(tmp_path / "router", router) as first, nginx(tmp_path / "sessions", sessions) as second:
        _commands_answer(Proxied(f"http://127.0.0.1:{first}/below", f"http://127.0.0.1:{second}/below"))


def _commands_answer(proxied: Proxied) -> None:
    for key in WORDS:
        exact = json.dumps([key])
        for words in (["get", "op0", "--", key], ["lookup", "op0", "--", exact]):
            answer = _run(proxied.router, words)
            assert (answer["key"], answer["value"]["count"]) == ({"word": key}, count(key))
        for words in (["explain", "op0", "--", key], ["explain", "op0", "--key", exact]):
            assert _run(proxied.router, words)["key"] == {"word": key}
        if not key.startswith("["):  # these are JSON to the commands below
            assert _run(proxied.router, ["history", "op0", "--", key])["key"] == {"word": key}
            assert _run(proxied.sessions, ["windows", "op0", "--", key])["key"] == {"visitor": key}
        watched = _run(proxied.router, ["watch", "op0", "--limit", "1", "--", key], "--format=ndjson")
        assert (watched["key"], watched["value"]["count"]) == ({"word": key}, count(key))


def _run(url: str, words: list[str], form: str = "--json") -> Any:
    done = CliRunner().invoke(cli, [words[0], "--url", url, form, *words[1:]])
    assert done.exit_code == 0, (words, done.output)
    return json.loads(done.stdout.splitlines()[0])


def test_a_proxy_that_takes_another_key_is_an_error_and_no_value(ports: tuple[int, int], tmp_path: Path) -> None:
    router, _ = ports
    bent = f"""
    location / {{
      rewrite ^(/v1/stores/op0/(keys|history|watch|metadata))/ $1/a break;
      proxy_pass http://127.0.0.1:{router};
    }}"""
    calls: list[Callable[[Store[Any]], object]] = [
        lambda store: store.get("keys"),
        lambda store: next(store.history("keys")),
        lambda store: next(iter(store.watch("keys"))),
    ]
    with nginx(tmp_path / "nginx", bent) as port, Client(f"http://127.0.0.1:{port}") as client:
        store = client.store("op0")
        assert store.get("a").value["count"] == count("a")
        for call in calls:
            with pytest.raises(WrongKeyError, match=r'"keys".* was asked for, and .*"a"') as raised:
                call(store)
            assert raised.value.answered == {"word": "a"}
        for command in ("get", "history", "explain", "watch"):
            done = CliRunner().invoke(cli, [command, "op0", "b", "--url", f"http://127.0.0.1:{port}"])
            assert (done.exit_code, done.stdout) == (3, "")
            assert "the answer is of another key" in done.stderr
