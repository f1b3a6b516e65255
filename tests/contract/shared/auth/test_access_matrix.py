"""Who gets what: every call of the documents, by every kind of credential, at every kind of service.

`pytest -s` prints the table. Beside it: nobody can tell a hidden store from one that is not there, on either way into a
service.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from tests.support.bus.redis_server import RedisServer
from tests.support.cluster.guarded_world import ABSENT, WORD, World, guarded_world
from tests.support.services.guarded import WRONG
from tests.support.services.issuer import SigningKey
from tests.support.services.openapi import cursor_at
from tests.support.services.schemathesis_runs import CONFIGURATION, Knowledge, run_schemathesis
from tests.support.spark.counting_query import WORDS

from understudy_router.http.app import create_app as router_app
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
    "look_up": OF_READERS,
    "look_up_exactly": OF_READERS,
    "look_up_many": OF_READERS,
    "scan": OF_READERS,
    "scan_by_body": OF_READERS,
    "export": OF_READERS,
    "store_file": OF_READERS,
    "changes": OF_READERS,
    "export_by_body": OF_READERS,
    "count": OF_READERS,
    "windows": {**OF_READERS, "reader": 400},
    "windows_by_json": {**OF_READERS, "reader": 400},
    "read_several": OF_READERS,
    "lease_snapshot": {**OF_READERS, "reader": 201},
    "release_snapshot": {**OF_READERS, "of-elsewhere": 403, "reader": 204},
    "key_history": OF_READERS,
    "key_history_by_json": OF_READERS,
    "watch_key": {**OF_READERS, "watcher": 200},
    "watch_key_by_json": {**OF_READERS, "watcher": 200},
    "watch_keys": {**OF_READERS, "watcher": 400, "reader": 400},
    "describe_hosts": OF_READERS,
    "explain_key": OF_READERS,
    "list_stores": OF_EVERYBODY,
    "openapi": OF_EVERYBODY,
    "docs": OF_EVERYBODY,
    "describe_store": OF_A_STORE,
    "is_alive": None,
    "is_ready": None,
}
"""By the name of a call: what each right gets. None: nobody needs a credential. Not here: monitors GET, admins POST."""


_BY_JSON = {"look_up_exactly", "key_history_by_json", "windows_by_json", "watch_key_by_json"}
_QUERIES = {"changes": "?from=1"}
_ENDLESS = {"events", "watch_key", "watch_key_by_json"}


def calls(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Method, path, target and name of each call."""
    for path, methods in document["paths"].items():
        target = path.replace("{store}", "op0").replace("{key}", WORD).replace("{node_id}", "n1")
        target = target.replace("{snapshot}", LEASE.encode()).replace("{ending}", "csv")
        for method, operation in methods.items():
            name = operation["operationId"]
            query = f"?key={quote(json.dumps([WORD]))}" if name in _BY_JSON else _QUERIES.get(name, "")
            # What has no end is asked for its head.
            yield "HEAD" if name in _ENDLESS else method.upper(), path, target + query, name


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_every_call_answers_each_credential_as_its_grants_say(world: World, service: str) -> None:
    rows = []
    shown = {**world.keys, "wrong": WRONG, **tokens(world)}
    for method, path, target, name in calls(world.documents[service]):
        expected = EXPECTED.get(name, OF_ADMINS if method == "POST" else OF_MONITORS)
        row = {}
        body = json.dumps(BODIES.get(name, {"drain": False}))
        granted = expected or OF_EVERYBODY
        granted = granted | {f"{who} jwt": granted[who] for who in BY_TOKEN}
        for who, refused in (*((who, 401) for who in UNKNOWN), *granted.items()):
            status, headers, answer = world.ask(service, method, target, shown.get(who), body=body)
            wanted = 200 if expected is None else refused
            row[who] = status
            assert status == wanted, (service, method, target, who, answer)
            if method != "HEAD" and status >= 400:
                assert headers["content-type"] == "application/problem+json"
                assert ("www-authenticate" in headers) == (status == 401)
        rows.append((f"{method} {path}", row))
    sys.stdout.write(table(service, rows))
    assert len(rows) >= 11


def table(service: str, rows: Iterable[tuple[str, Mapping[str, int]]]) -> str:
    """The matrix for people."""
    columns = [*UNKNOWN, "of-elsewhere", "watcher", *(f"{who}{kind}" for who in BY_TOKEN for kind in ("", " jwt"))]
    lines = [f"\n{service:44}" + "".join(f"{column:>13}" for column in columns)]
    lines += [f"{call:44}" + "".join(f"{row.get(column, ''):>13}" for column in columns) for call, row in rows]
    return "\n".join([*lines, ""])


# ---- nothing is left out


def routes_of(app: Any) -> Iterator[tuple[str, str]]:
    """Method and path of each route of the framework."""
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
        filled = path.replace("{key:path}", "a").replace("{path:path}", "a")
        filled = filled.replace("{ending:ending}", "csv")
        for name in ("store", "node_id", "name", "snapshot"):
            filled = filled.replace(f"{{{name}}}", "a")
        assert "{" not in filled, path
        assert need_of(method, filled.encode()).kind is not NeedKind.UNLISTED, (method, path)


async def test_a_guarded_application_is_guarded_under_any_server(world: World) -> None:
    app = router_app(world.router.router, access=world.router.access)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
        for key, wanted in ((None, 401), (WRONG, 401), (world.keys["monitor"], 403), (world.keys["of-elsewhere"], 404)):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            for path in (f"/v1/stores/op0/keys/{WORD}", "/v1/stores/op0/metadata"):
                assert (await client.get(path, headers=headers)).status_code == wanted
        assert (await client.get("/livez")).status_code == 200


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


def exact(key: object) -> str:
    """A key in its exact form."""
    return quote(json.dumps(key), safe="")


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_a_key_prefix_holds_for_every_way_to_ask_for_a_key(world: World, service: str) -> None:
    other, key = WORDS[1], world.keys["of-one-word"]
    asked = {
        f"/v1/stores/op0/keys/{WORD}": 200,
        f"/v1/stores/op0/keys/%{ord(WORD[0]):02x}{WORD[1:]}": 200,
        f"/v1/stores/op0/lookup?key={exact([WORD])}": 200,
        f"/v1/stores/op0/keys/{other}": 403,
        f"/v1/stores/op0/keys/{ABSENT}": 403,
        f"/v1/stores/op0/lookup?key={exact([other])}": 403,
        f"/v1/stores/op0/lookup?key={exact({'word': other})}": 403,
        f"/v1/stores/op0/lookup?key={exact([None])}": 403,
        f"/v1/stores/op0/history/{WORD}": 200,
        f"/v1/stores/op0/history/{other}": 403,
        f"/v1/stores/op0/watch/{other}": 403,
        f"/v1/stores/op0/keys/{WORD}?version=1": 200,
        f"/v1/stores/op0/keys/{other}?version=1": 403,
    }
    if service == "router":
        asked |= {f"/v1/stores/op0/metadata/{WORD}": 200, f"/v1/stores/op0/metadata/{other}": 403}
        asked |= {f"/v1/stores/op0/metadata?key={exact([other])}": 403}
    for target, wanted in asked.items():
        for more in ("", "content-length: 0\r\n"):
            status, _, body = world.ask(service, "GET", target, key, more=more)
            assert status == wanted, (target, body)
    batch = json.dumps({"keys": [[other], [WORD], {"word": ABSENT}, 7]})
    status, _, body = world.ask(service, "POST", "/v1/stores/op0/lookup", key, body=batch)
    results = json.loads(body)["results"]
    assert (status, [each["status"] for each in results]) == (200, [403, 200, 403, 400])
    assert results[0]["type"] == "forbidden"


@pytest.mark.parametrize("service", ["serve", "node", "router"])
def test_probes_say_whether_to_everybody_and_why_to_monitors_only(world: World, service: str) -> None:
    for path in ("/livez", "/healthz", "/readyz"):
        for key in (None, WRONG, world.keys["reader"], world.keys["monitor"]):
            status, _, body = world.ask(service, "GET", path, key)
            assert status == 200
            assert str(world.keys.path.parent).encode() not in body


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
