"""The OWASP API Security Top 10 of 2023, a class for each risk, against real services that ask for credentials.

Each class has the attack that names the risk. What else defends is in docs/threat-model.md, with its tests.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.bus.redis_server import RedisServer
from tests.support.cluster.guarded_world import EXPORTER, WORD, World, guarded_world
from tests.support.services.issuer import SigningKey, token_issuer
from tests.support.spark.counting_query import WORDS

from understudy_shared.auth.issuer_keys import MAX_SET_BYTES, FetchError, KeySetError, _key_set_at
from understudy_shared.http.edge import MAX_BODY_BYTES
from understudy_shared.server.connection_limits import MAX_HEADER_BYTES, MAX_REQUEST_TARGET_BYTES

SERVICES = ("serve", "router")
every_service = pytest.mark.parametrize("service", SERVICES)
KEY_PATH = f"/v1/stores/op0/keys/{WORD}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: RedisServer) -> Iterator[World]:
    with guarded_world(tmp_path_factory.mktemp("owasp"), server) as found:
        yield found


class TestApi1BrokenObjectLevelAuthorization:
    @every_service
    def test_nobody_reads_the_key_of_another_by_writing_it_otherwise(self, world: World, service: str) -> None:
        other, mine = WORDS[1], world.keys["of-one-word"]
        forms = [other, f"%{ord(other[0]):02x}{other[1:]}", f"{other}?key=%5B%22{WORD}%22%5D", f"{other}#{WORD}"]
        for form in forms:
            status, _, body = world.ask(service, "GET", f"/v1/stores/op0/keys/{form}", mine)
            assert status in {400, 403}, (form, body)
            assert b"count" not in body
        batch = json.dumps({"keys": [[WORD], [other]]})
        _, _, body = world.ask(service, "POST", "/v1/stores/op0/lookup", mine, body=batch)
        assert [each["status"] for each in json.loads(body)["results"]] == [200, 403]


class TestApi2BrokenAuthentication:
    @every_service
    def test_a_credential_counts_in_its_one_place_and_form_only(self, world: World, service: str) -> None:
        key = world.keys["reader"]
        basic = base64.b64encode(f"reader:{key}".encode()).decode()
        for more in (
            f"authorization: Basic {basic}\r\n",
            f"authorization: {key}\r\n",
            f"authorization: Bearer {key} {key}\r\n",
            f"authorization: Bearer {key}\r\nauthorization: Bearer {key}\r\n",
            f"x-api-key: {key}\r\n",
            f"cookie: understudy_session={key}\r\n",
        ):
            assert world.ask(service, "GET", KEY_PATH, None, more=more)[0] == 401, more
        assert world.ask(service, "GET", f"{KEY_PATH}?api_key={key}", None)[0] == 401
        assert world.ask(service, "GET", KEY_PATH, key)[0] == 200

    @every_service
    def test_a_forged_token_is_refused_and_learns_nothing(self, world: World, service: str) -> None:
        forged = [
            world.issuer.token(key=SigningKey("first"), groups=["chiefs"]),
            world.issuer.token(headers={"kid": "nobody's"}, groups=["chiefs"]),
            world.issuer.token(aud="another service", groups=["chiefs"]),
        ]
        answers = {world.ask(service, "GET", KEY_PATH, token)[2] for token in forged}
        assert len(answers) == 1
        assert json.loads(answers.pop())["type"] == "unauthenticated"


class TestApi3BrokenObjectPropertyLevelAuthorization:
    def test_a_member_that_nobody_documented_changes_nothing(self, world: World) -> None:
        for body in ('{"drain": false, "force": true}', '{"drain": "false"}', '{"Drain": false}', "[]"):
            status, _, said = world.ask("router", "POST", "/admin/v1/nodes/n1/drain", world.keys["admin"], body=body)
            assert (status, json.loads(said)["type"]) == (400, "bad-request"), body

    @every_service
    def test_who_may_not_monitor_reads_no_reason_and_no_place_of_the_inside(self, world: World, service: str) -> None:
        inside = (str(world.keys.path.parent).encode(), b"Traceback", b".py")
        for target in ("/readyz", "/livez", "/v1/stores", KEY_PATH, "/v1/stores/op0/keys/nobody", "/v1/stores/nowhere"):
            _, _, body = world.ask(service, "GET", target, world.keys["reader"])
            assert not [text for text in inside if text in body], (target, body)


class TestApi4UnrestrictedResourceConsumption:
    @every_service
    def test_what_is_too_large_is_refused_by_its_size(self, world: World, service: str) -> None:
        key = world.keys["reader"]
        long = "a" * (MAX_REQUEST_TARGET_BYTES + 10)
        assert world.ask(service, "GET", f"/v1/stores/op0/keys/{long}", key)[0] == 414
        assert world.ask(service, "GET", KEY_PATH, key, more=f"x: {'a' * (MAX_HEADER_BYTES + 10)}\r\n")[0] == 431
        many = json.dumps({"keys": [[WORD]] * 1001})
        assert world.ask(service, "POST", "/v1/stores/op0/lookup", key, body=many)[0] == 413
        assert world.ask(service, "POST", "/v1/stores/op0/lookup", key, body="x" * (MAX_BODY_BYTES + 1))[0] == 413


class TestApi5BrokenFunctionLevelAuthorization:
    @every_service
    def test_a_reader_neither_looks_at_the_service_nor_changes_it(self, world: World, service: str) -> None:
        looks = ("/metrics", "/admin/v1/lag", "/admin/v1/nodes", "/admin/v1/events", "/admin//v1/lag", "/ADMIN/v1/lag")
        for path in looks:
            for who in ("reader", "of-elsewhere"):
                assert world.ask(service, "GET", path, world.keys[who])[0] in {403, 404}, path
        for path in ("/admin/v1/drain", "/admin/v1/nodes/n1/drain", "/internal/v1/lookup"):
            for who in ("reader", "monitor"):
                status, _, _ = world.ask(service, "POST", path, world.keys[who], body='{"drain": true}')
                assert status in {403, 404}, path
        for method in ("PUT", "DELETE", "PATCH"):
            assert world.ask(service, method, "/admin/v1/lag", world.keys["reader"])[0] in {403, 404}


class TestApi6UnrestrictedAccessToSensitiveBusinessFlows:
    @every_service
    def test_who_reads_everything_key_by_key_is_held_to_his_rate(self, world: World, service: str) -> None:
        answers = [world.ask(service, "GET", KEY_PATH, world.keys[EXPORTER]) for _ in range(4)]
        assert 429 in {status for status, _, _ in answers}
        _, headers, body = next(each for each in answers if each[0] == 429)
        assert int(headers["retry-after"]) >= 1
        assert json.loads(body)["type"] == "rate-limited"
        assert world.ask(service, "GET", KEY_PATH, world.keys["reader"])[0] == 200


class TestApi7ServerSideRequestForgery:
    @every_service
    def test_no_request_says_where_a_service_connects_to(self, world: World, service: str) -> None:
        with token_issuer() as victim:
            where = victim.url.removeprefix("http://")
            stranger = SigningKey("mine")
            pointing = {"jku": f"{victim.url}/keys", "x5u": f"{victim.url}/cert"}
            token = world.issuer.token(key=stranger, headers=pointing, iss=victim.url)
            assert world.ask(service, "GET", KEY_PATH, token)[0] == 401
            more = f"x-forwarded-host: {where}\r\nforwarded: host={where}\r\nx-original-url: {victim.url}/\r\n"
            assert world.ask(service, "GET", KEY_PATH, world.keys["reader"], more=more)[0] == 200
            world.ask(service, "GET", f"{victim.url}{KEY_PATH}", world.keys["reader"])
            assert victim.asked == 0


class TestApi8SecurityMisconfiguration:
    @every_service
    def test_every_answer_has_the_headers_and_says_nothing_of_what_made_it(self, world: World, service: str) -> None:
        more = "origin: https://elsewhere.example\r\naccess-control-request-method: POST\r\n"
        for method, target in (("GET", KEY_PATH), ("GET", "/nowhere"), ("OPTIONS", KEY_PATH), ("TRACE", KEY_PATH)):
            for key in (None, world.keys["reader"]):
                status, headers, _ = world.ask(service, method, target, key, more=more)
                assert status < 500
                assert headers["x-content-type-options"] == "nosniff"
                assert not [name for name in headers if name.startswith("access-control-") or name == "server"]

    @every_service
    def test_the_documentation_is_no_more_open_than_what_it_describes(self, world: World, service: str) -> None:
        for path in ("/openapi.json", "/docs", "/v1/stores"):
            assert world.ask(service, "GET", path, None)[0] == 401


class TestApi9ImproperInventoryManagement:
    @every_service
    def test_there_is_one_version_of_the_api_and_nothing_beside_what_is_documented(
        self, world: World, service: str
    ) -> None:
        paths = world.documents[service]["paths"]
        known = {"v1", "admin", "livez", "readyz", "metrics", "openapi.json", "docs"}
        assert {path.split("/")[1] for path in paths} <= known
        for path in ("/v2/stores", "/v0/stores", "/debug", "/redoc", "/admin/v2/lag", "/.env", "/actuator", "/graphql"):
            status, _, _ = world.ask(service, "GET", path, world.keys["reader"])
            assert status in {403, 404}, path


class TestApi10UnsafeConsumptionOfApis:
    def test_what_an_issuer_answers_is_bounded_and_never_followed_elsewhere(self) -> None:
        with token_issuer() as issuer:
            url = f"{issuer.url}/keys"
            assert set(_key_set_at(url)) == {"first", "curved"}
            for status, answer in ((302, None), (500, None), (200, b"[" * (MAX_SET_BYTES + 1)), (200, b"<html>")):
                issuer.status, issuer.answer = status, answer
                with pytest.raises((FetchError, KeySetError)):
                    _key_set_at(url)

    def test_an_answer_of_an_issuer_that_is_cut_off_is_reported_as_that(self) -> None:
        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"a')

        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
            done = thread.submit(answer)
            with pytest.raises(FetchError, match="7 bytes too early"):
                _key_set_at(f"http://127.0.0.1:{listener.getsockname()[1]}/keys")
            done.result(10)
