"""Who gets what: every call of the documents, by every kind of credential, at every kind of service.

Beside it: nobody can tell a hidden store from one that is not there, on either way into a service; and attacks on what
a service believes of its readers.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from tests.support.bus.redis_server import RedisServer
from tests.support.cluster.guarded_world import ABSENT, EXPORTER, WORD, World, guarded_world
from tests.support.services.guarded import WRONG
from tests.support.services.issuer import SigningKey, token_issuer
from tests.support.services.openapi import cursor_at
from tests.support.services.schemathesis_runs import CONFIGURATION, Knowledge, run_schemathesis
from tests.support.spark.counting_query import WORDS

from understudy_shared.auth.permissions import NeedKind, need_of
from understudy_shared.base.words import ApplicationId, Lineage
from understudy_shared.reads.tokens import Position, SnapshotLease


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: RedisServer) -> Iterator[World]:
    with guarded_world(tmp_path_factory.mktemp("guarded"), server) as found:
        yield found


# ---- the matrix

UNKNOWN = ("none", "wrong", "expired", "forged jwt", "old jwt")
BY_TOKEN = {"reader": "readers", "monitor": "watchers", "admin": "chiefs"}
"""Who is asked for by a token of an issuer, too, and by which group that it names."""


def tokens(world: World) -> dict[str, str]:
    """Tokens by their columns: of each right, one that a stranger signed, and one that has ended."""
    made = {f"{who} jwt": world.issuer.token(groups=[group]) for who, group in BY_TOKEN.items()}
    made["forged jwt"] = world.issuer.token(key=STRANGER, groups=["readers", "chiefs"])
    made["old jwt"] = world.issuer.token(exp=int(time.time()) - 60, groups=["readers", "chiefs"])
    return made


KEY_PATH = f"/v1/stores/op0/keys/{WORD}"
STRANGER = SigningKey("first")
LEASE = SnapshotLease(Position(ApplicationId("counting"), Lineage("any"), 1, None), "any", 60)
OF_READERS = {"of-elsewhere": 404, "watcher": 403, "monitor": 403, "admin": 403, "reader": 200}
OF_EVERYBODY = dict.fromkeys(("of-elsewhere", "watcher", "monitor", "admin", "reader"), 200)
OF_A_STORE = {**OF_EVERYBODY, "of-elsewhere": 404}
OF_MONITORS = {"of-elsewhere": 403, "watcher": 403, "reader": 403, "monitor": 200, "admin": 200}
OF_ADMINS = {"of-elsewhere": 403, "watcher": 403, "reader": 403, "monitor": 403, "admin": 202}
BODIES: dict[str, object] = {
    "read_several": {"reads": [{"store": "op0", "keys": [[WORD]]}]},
    "look_up_many": {"keys": [[WORD]]},
    "scan_by_body": {"limit": 1},
    "lease_snapshot": {"stores": ["op0"]},
    "export_by_body": {"format": "csv"},
    "watch_keys": {"keys": []},
}
EXPECTED = {
    "windows": {**OF_READERS, "reader": 400},
    "windows_by_json": {**OF_READERS, "reader": 400},
    "lease_snapshot": {**OF_READERS, "reader": 201},
    "release_snapshot": {**OF_READERS, "of-elsewhere": 403, "reader": 204},
    "watch_key": {**OF_READERS, "watcher": 200},
    "watch_key_by_json": {**OF_READERS, "watcher": 200},
    "watch_keys": {**OF_READERS, "watcher": 400, "reader": 400},
    "list_stores": OF_EVERYBODY,
    "openapi": OF_EVERYBODY,
    "docs": OF_EVERYBODY,
    "describe_store": OF_A_STORE,
    "is_alive": None,
    "is_ready": None,
}
"""By the name of a call: what each right gets. None: nobody needs a credential. Not here: reads of stores, and what
monitors GET and admins POST.
"""


_BY_JSON = {"look_up_exactly", "key_history_by_json", "windows_by_json", "watch_key_by_json"}
_QUERIES = {"changes": "?from=1"}
_ENDLESS = {"events", "watch_key", "watch_key_by_json"}


def calls(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for path, methods in document["paths"].items():
        target = path.replace("{store}", "op0").replace("{key}", WORD).replace("{node_id}", "n1")
        target = target.replace("{snapshot}", LEASE.encode()).replace("{ending}", "csv")
        for method, operation in methods.items():
            name = operation["operationId"]
            query = f"?key={quote(json.dumps([WORD]))}" if name in _BY_JSON else _QUERIES.get(name, "")
            # What has no end is asked for its head.
            yield "HEAD" if name in _ENDLESS else method.upper(), target + query, name


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_every_call_answers_each_credential_as_its_grants_say(world: World, service: str) -> None:
    asked = list(calls(world.documents[service]))
    assert len(asked) >= 11
    shown = {**world.keys, "wrong": WRONG, **tokens(world)}
    for method, target, name in asked:
        of_others = OF_READERS if target.startswith("/v1/") else OF_ADMINS if method == "POST" else OF_MONITORS
        expected = EXPECTED.get(name, of_others)
        body = json.dumps(BODIES.get(name, {"drain": False}))
        granted = expected or OF_EVERYBODY
        granted = granted | {f"{who} jwt": granted[who] for who in BY_TOKEN}
        for who, refused in (*((who, 401) for who in UNKNOWN), *granted.items()):
            status, headers, answer = world.ask(service, method, target, shown.get(who), body=body)
            wanted = 200 if expected is None else refused
            assert status == wanted, (service, method, target, who, answer)
            if method != "HEAD" and status >= 400:
                assert headers["content-type"] == "application/problem+json"
                assert ("www-authenticate" in headers) == (status == 401)


# ---- nothing is left out


def routes_of(app: Any) -> Iterator[tuple[str, str]]:
    while not isinstance(app, FastAPI):
        app = getattr(app, "_http", None) or app._app
    pending: list[Any] = list(app.routes)
    while pending:
        route = pending.pop()
        inner = getattr(route, "original_router", None)
        if inner is not None:
            pending += inner.routes
        elif hasattr(route, "methods"):
            yield from ((method, route.path) for method in route.methods)


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_every_route_of_every_service_has_a_line_in_the_table_of_needs(world: World, service: str) -> None:
    found = set(routes_of(world.apps[service]))
    assert len(found) > 8
    for method, path in found:
        filled = path.replace("{key:key}", "a").replace("{path:path}", "a")
        filled = filled.replace("{ending:ending}", "csv")
        for name in ("store", "node_id", "name", "snapshot"):
            filled = filled.replace(f"{{{name}}}", "a")
        assert "{" not in filled, path
        assert need_of(method, filled.encode()).kind is not NeedKind.UNLISTED, (method, path)


# ---- hidden stores

HIDDEN, NOWHERE = "op0", "op9"
ASKED = [
    ("GET", "/v1/stores/{}", ""),
    ("GET", "/v1/stores/{}/keys/" + WORD, ""),
    ("GET", "/v1/stores/{}/keys/" + ABSENT, ""),
    ("GET", "/v1/stores/{}/keys/a/b/c", ""),
    ("GET", "/v1/stores/{}/keys", ""),
    ("GET", "/v1/stores/{}/keys/a?max_lag=none", ""),
    ("GET", "/v1/stores/{}/lookup?key=%5B%22a%22%5D", ""),
    ("GET", "/v1/stores/{}/lookup?key=%5B", ""),
    ("POST", "/v1/stores/{}/lookup", '{"keys": [["a"]]}'),
    ("POST", "/v1/stores/{}/lookup", "no JSON"),
    ("DELETE", "/v1/stores/{}/lookup", ""),
    ("GET", "/v1/stores/{}/metadata", ""),
    ("GET", "/v1/stores/{}/metadata/a", ""),
    ("GET", "/v1/stores/{}/history/a", ""),
    ("GET", "/v1/stores/{}/scan", ""),
    ("POST", "/v1/stores/{}/scan", "{}"),
    ("GET", "/v1/stores/{}/count", ""),
    ("GET", "/v1/stores/{}/windows/a", ""),
    ("GET", "/v1/stores/{}/export", ""),
    ("POST", "/v1/stores/{}/export", "{}"),
    ("GET", "/v1/stores/{}.csv", ""),
    ("GET", "/v1/stores/{}/watch/a", ""),
    ("GET", "/v1/stores/{}/watch?key=%5B%22a%22%5D", ""),
    ("POST", "/v1/stores/{}/watch", '{"keys": [["a"]]}'),
    ("GET", "/v1/stores/{}/anything", ""),
    ("GET", "/admin/v1/lag?store={}", ""),
    ("GET", "/admin/v1/history?store={}", ""),
    ("GET", "/internal/v1/stores/{}/key", ""),
]


@pytest.mark.parametrize("service", ["serve", "node", "router"])
@pytest.mark.parametrize("by_asgi", [False, True], ids=["directly", "by-asgi"])
def test_nobody_can_tell_a_hidden_store_from_one_that_is_not_there(world: World, service: str, by_asgi: bool) -> None:
    more = "content-length: 0\r\n" if by_asgi else ""
    for who in ("of-elsewhere", None):
        key = None if who is None else world.keys[who]
        for method, path, body in ASKED:
            answers = []
            for store in (HIDDEN, NOWHERE):
                sent = more if method == "GET" else ""
                status, headers, content = world.ask(service, method, path.format(store), key, more=sent, body=body)
                answers.append((status, headers, content.replace(store.encode(), b"STORE")))
            assert answers[0] == answers[1], (method, path, who)
            assert answers[0][0] in {401, 403, 404}
            assert WORD.encode() not in answers[0][2]


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_no_spelling_of_a_file_reads_a_store_without_the_right_to_export_it(world: World, service: str) -> None:
    """A regular expression's `$` takes a line break for the end of a path, where a table of rights does not."""
    for who in ("monitor", "admin", "watcher", "of-one-word"):
        for ending in ("csv", "csv%0A", "csv%0a", "ndjson%0A", "csv%0A%0A", "csv%0D", "csv%00", "csv%20", "CSV"):
            status, _, body = world.ask(service, "GET", f"/v1/stores/op0.{ending}", world.keys[who])
            assert status in {400, 403, 404}, (who, ending, body)
            assert WORD.encode() not in body


@pytest.mark.parametrize("service", ["serve", "router"])
def test_a_key_prefix_holds_however_the_key_is_written(world: World, service: str) -> None:
    other, key = WORDS[1], world.keys["of-one-word"]
    asked = {
        f"keys/{WORD}": 200,
        f"keys/%{ord(WORD[0]):02x}{WORD[1:]}": 200,
        f"keys/{other}": 403,
        f"keys/%{ord(other[0]):02x}{other[1:]}": 403,
        f"keys/{ABSENT}": 403,
        f"lookup?key={quote(json.dumps({'word': other}))}": 403,
        f"watch/{other}": 403,
    }
    for target, wanted in asked.items():
        for more in ("", "content-length: 0\r\n"):
            status, _, body = world.ask(service, "GET", f"/v1/stores/op0/{target}", key, more=more)
            assert status == wanted, (target, body)


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_probes_say_whether_to_everybody_and_why_to_monitors_only(world: World, service: str) -> None:
    for path in ("/livez", "/healthz", "/readyz"):
        for key in (None, WRONG, world.keys["reader"], world.keys["monitor"]):
            status, _, body = world.ask(service, "GET", path, key)
            assert status == 200
            assert str(world.keys.path.parent).encode() not in body


# ---- attacks


def test_a_credential_counts_in_its_one_place_and_form_only(world: World) -> None:
    key = world.keys["reader"]
    basic = base64.b64encode(f"reader:{key}".encode()).decode()
    for more in (
        f"authorization: Basic {basic}\r\n",
        f"authorization: Bearer {key}\r\nauthorization: Bearer {key}\r\n",
        f"x-api-key: {key}\r\n",
        f"cookie: understudy_session={key}\r\n",
    ):
        assert world.ask("router", "GET", KEY_PATH, None, more=more)[0] == 401, more
    assert world.ask("router", "GET", f"{KEY_PATH}?api_key={key}", None)[0] == 401


@pytest.mark.parametrize("service", ["serve", "router"])
def test_who_reads_everything_key_by_key_is_held_to_his_rate(world: World, service: str) -> None:
    answers = [world.ask(service, "GET", KEY_PATH, world.keys[EXPORTER]) for _ in range(4)]
    assert 429 in {status for status, _, _ in answers}
    assert world.ask(service, "GET", KEY_PATH, world.keys["reader"])[0] == 200


def test_no_request_says_where_a_service_connects_to(world: World) -> None:
    with token_issuer() as victim:
        pointing = {"jku": f"{victim.url}/keys", "x5u": f"{victim.url}/cert"}
        token = world.issuer.token(key=SigningKey("mine"), headers=pointing, iss=victim.url)
        assert world.ask("router", "GET", KEY_PATH, token)[0] == 401
        more = f"x-forwarded-host: {victim.url}\r\nx-original-url: {victim.url}/\r\n"
        assert world.ask("router", "GET", KEY_PATH, world.keys["reader"], more=more)[0] == 200
        world.ask("router", "GET", f"{victim.url}{KEY_PATH}", world.keys["reader"])
        assert victim.asked == 0


@pytest.mark.parametrize("service", ["serve", "router"])
def test_every_answer_has_the_headers_and_says_nothing_of_what_made_it(world: World, service: str) -> None:
    more = "origin: https://elsewhere.example\r\naccess-control-request-method: POST\r\n"
    for method, target in (("GET", KEY_PATH), ("GET", "/nowhere"), ("OPTIONS", KEY_PATH), ("TRACE", KEY_PATH)):
        status, headers, _ = world.ask(service, method, target, world.keys["reader"], more=more)
        assert status < 500
        assert headers["x-content-type-options"] == "nosniff"
        assert not [name for name in headers if name.startswith("access-control-") or name == "server"]


# ---- Schemathesis

OF_NO_RIGHT = ("unsupported_method", "positive_data_acceptance", "negative_data_rejection", "missing_required_header")
"""What is judged of those alone who may ask: others are refused before anything is looked at."""


@pytest.mark.full
@pytest.mark.parametrize("service", ["node", "router"])
def test_schemathesis_finds_nothing_with_every_right_with_none_and_with_another(
    world: World, service: str, tmp_path: Path
) -> None:
    """With every right: no bug, and every answer as the document says. With none, or of another store: no breach."""
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(world.documents[service]))
    _, _, body = world.ask(service, "GET", f"/v1/stores/op0/keys/{WORD}", world.keys["reader"])
    position = json.loads(body)["position"]
    hidden = (HIDDEN, str(world.keys.path.parent))
    told = Knowledge(position, cursor_at(position), world.keys["chief"], hidden)
    always = ("--checks=all", "--max-examples=20", f"--url=http://127.0.0.1:{world.ports[service]}", str(document))
    excluded = f"--exclude-checks={','.join(OF_NO_RIGHT)}"
    run_schemathesis(
        tmp_path,
        told,
        [
            (excluded, *always),
            (f"--header=Authorization: Bearer {world.keys['of-elsewhere']}", excluded, *always),
            (f"--header=Authorization: Bearer {world.keys['chief']}", *always, "--max-examples=40"),
        ],
        configuration=CONFIGURATION.replace(f'["{HIDDEN}"]', f'["{HIDDEN}", "elsewhere"]'),
    )
    assert world.ask(service, "GET", "/livez", None)[0] == 200
