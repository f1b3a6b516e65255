"""What a failed request to an object store means, and when it is made again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.exceptions import PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from understudy_node.checkpoint.azure import Azure
from understudy_node.checkpoint.gcs import GCS
from understudy_node.checkpoint.object_store import StoreTerms, failure_of
from understudy_node.checkpoint.s3 import S3
from understudy_node.checkpoint.store_files import Consequence, RepeatBudget, StorageFailure, StoreLimits

SECRET = "hush"
NOWHERE = "http://127.0.0.1:9"

Request = Callable[[Any], object]


def head(store: Any) -> object:
    return obstore.head(store, "k")


def get(store: Any) -> object:
    return obstore.get(store, "k").bytes()


def list_(store: Any) -> object:
    return obstore.list_with_delimiter(store)


KEYS: Any = {"access_key_id": "a", "secret_access_key": SECRET}

STORES: dict[str, tuple[StoreTerms, Callable[[str, Any], Any]]] = {
    "s3": (S3.terms, lambda url, options: S3Store("bucket", endpoint=url, region="us-east-1", **KEYS, **options)),
    "gcs": (GCS.terms, lambda url, options: GCSStore("bucket", base_url=url, bearer_token=SECRET, **options)),
    "azure": (
        Azure.terms,
        lambda url, options: AzureStore(
            "box", account_name="team", endpoint=f"{url}/team", sas_key=f"sv=1&sig={SECRET}", **options
        ),
    ),
}
"""The terms of each store, and how the library opens one at a URL."""
OPTIONS: Any = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}


class Store(ThreadingHTTPServer):
    """Answers each request with `reply`: a status and a body; or says nothing, or ends within the body."""

    daemon_threads = True
    reply: tuple[int, str] | str = (200, "")

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.over = threading.Event()

    def failing(
        self, request: Request, config: Mapping[str, str] = KEYS, *, at: str = "", **client_options: Any
    ) -> Exception:
        """The library's error of a request here."""
        client: Any = {"allow_http": True, **client_options}
        settings: Any = {"endpoint": at or self.url, "region": "us-east-1", **config}
        return failed(request, S3Store("bucket", client_options=client, retry_config={"max_retries": 0}, **settings))


class _Handler(BaseHTTPRequestHandler):
    server: Store
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        reply = self.server.reply
        if reply == "silence":
            self.server.over.wait(30)
        if isinstance(reply, str):
            self.close_connection = True
            self.send_response_only(200)
            self.send_header("content-length", "9")
        else:
            self.send_response_only(reply[0])
            self.send_header("content-length", str(len(reply[1])))
        self.send_header("last-modified", "Wed, 21 Oct 2026 07:28:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):
                self.wfile.write(b"half" if isinstance(reply, str) else reply[1].encode())

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.close_connection = True  # with the body, which is not read
        self.do_GET()


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as found:
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield found
        found.over.set()
        found.shutdown()


def failed(request: Request, store: Any) -> Exception:
    with pytest.raises(Exception, match=r".") as found:
        request(store)
    return found.value


def meant(error: Exception, terms: StoreTerms = S3.terms) -> StorageFailure:
    return failure_of(error, terms, "here and there")


REPLIES: list[tuple[Iterable[str], Request, tuple[int, str], Consequence, str]] = [
    (STORES, get, (503, "SlowDown"), Consequence.TRY_AGAIN, "asks for fewer requests (503 SlowDown)"),
    (STORES, list_, (503, "ServerBusy"), Consequence.TRY_AGAIN, "asks for fewer requests (503 ServerBusy)"),
    (STORES, head, (429, ""), Consequence.TRY_AGAIN, "asks for fewer requests (429)"),
    (STORES, get, (500, "InternalError"), Consequence.TRY_AGAIN, "failed (500 InternalError)"),
    (STORES, get, (403, "AccessDenied"), Consequence.REFUSED, "what they ask for (403 AccessDenied)"),
    (STORES, list_, (403, "AuthenticationFailed"), Consequence.REFUSED, "refuses the credentials"),
    (STORES, head, (401, ""), Consequence.REFUSED, "refuses the credentials, or what they ask for (401)"),
    (STORES, get, (400, "InvalidArgument"), Consequence.FINAL, "answered 400 InvalidArgument"),
    (STORES, list_, (409, "PublicAccessNotPermitted"), Consequence.FINAL, "answered 409 PublicAccessNotPermitted"),
    (STORES, list_, (404, "NoSuchBucket"), Consequence.FINAL, "there is no such"),
    (["s3"], list_, (400, "ExpiredToken"), Consequence.REFUSED, "have expired (400 ExpiredToken)"),
    (["s3"], head, (400, "ExpiredToken"), Consequence.REFUSED, "have expired (400)"),
    (["gcs", "azure"], head, (400, ""), Consequence.FINAL, "answered 400"),
]


@pytest.mark.parametrize(
    ("kind", "request_", "reply", "meaning", "reason"), [(kind, *row) for kinds, *row in REPLIES for kind in kinds]
)
def test_a_reply_says_what_follows_from_it_whatever_was_asked(  # noqa: PLR0917  # one table
    store: Store, kind: str, request_: Request, reply: tuple[int, str], meaning: Consequence, reason: str
) -> None:
    """The library's text has the URL, and with it the shared access signature of Azure."""
    status, code = reply
    store.reply = status, f"<Error><Code>{code}</Code><StringToSign>{SECRET}</StringToSign></Error>" if code else ""
    terms, opened = STORES[kind]
    failure = meant(failed(request_, opened(store.url, OPTIONS)), terms)
    assert failure.meaning is meaning
    assert reason in failure.reason
    assert failure.fix
    assert SECRET not in failure.reason + failure.fix


def test_a_provider_of_identities_that_refuses_is_not_the_store(store: Store) -> None:
    store.reply = 400, '{"error":"invalid_client","error_description":"hush"}'
    principal: Any = {"client_id": "c", "client_secret": SECRET, "tenant_id": "t", "authority_host": store.url}
    opened = AzureStore("box", account_name="team", endpoint=NOWHERE, **principal, **OPTIONS)
    failure = meant(failed(head, opened), Azure.terms)
    assert failure.meaning is Consequence.REFUSED
    assert failure.reason == "the provider of identities refuses the credentials (400)"


@pytest.mark.parametrize("request_", [head, get, list_])
def test_a_bucket_in_another_region_is_no_broken_connection(store: Store, request_: Request) -> None:
    """S3 answers 301 and names no address, which no repetition changes."""
    store.reply = 301, ""
    failure = meant(store.failing(request_))
    assert (failure.meaning, "in another region" in failure.reason) == (Consequence.FINAL, True)
    assert "AWS_REGION" in failure.fix


@pytest.mark.parametrize("request_", [head, get, list_])
def test_a_connection_that_fails_is_tried_again(store: Store, request_: Request) -> None:
    away = meant(store.failing(request_, at=NOWHERE))
    assert (away.meaning, away.reason) == (Consequence.TRY_AGAIN, "no connection to the store")
    store.reply = "silence"
    silent = meant(store.failing(request_, read_timeout="200ms"))
    assert (silent.meaning, silent.reason) == (Consequence.TRY_AGAIN, "the store did not answer in time")


def test_a_reply_that_ends_too_early_is_tried_again(store: Store) -> None:
    store.reply = "half"
    failure = meant(store.failing(get))
    assert failure.meaning is Consequence.TRY_AGAIN
    assert "the connection to the store broke (" in failure.reason


def test_an_endpoint_without_tls_is_refused_unless_it_is_named(store: Store) -> None:
    failure = meant(store.failing(head, allow_http=False))
    assert (failure.meaning, failure.reason) == (Consequence.FINAL, "the endpoint is not an https:// URL")


@pytest.mark.parametrize("request_", [head, list_])
@pytest.mark.parametrize("status", [403, 404, 405])
def test_a_machine_without_a_role_has_no_credentials_whatever_its_metadata_service_answers(
    store: Store, monkeypatch: pytest.MonkeyPatch, request_: Request, status: int
) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    store.reply = status, ""
    for service in (store.url, NOWHERE):
        failure = meant(store.failing(request_, {"metadata_endpoint": service}))
        assert failure.meaning is Consequence.REFUSED
        assert failure.reason == "no credentials were found, looked in here and there"


@pytest.mark.parametrize("kind", [PermissionDeniedError, UnauthenticatedError])
def test_a_refusal_is_known_by_its_class_alone(kind: type[Exception]) -> None:
    assert meant(kind("a text of another release")).meaning is Consequence.REFUSED


@given(st.text())
def test_any_text_has_a_meaning_and_is_not_repeated(text: str) -> None:
    failure = meant(ValueError(f"secret-{text}-secret"))
    assert failure.meaning in Consequence
    assert f"secret-{text}-secret" not in failure.reason


def test_waits_double_up_to_the_limit_and_are_jittered_from_zero() -> None:
    limits = StoreLimits(first_wait_ms=100, max_wait_ms=300)
    assert [limits.wait_ms(tries, lambda: 1.0) for tries in (1, 2, 3, 9)] == [100, 200, 300, 300]
    assert limits.wait_ms(3, lambda: 0.0) == 0


def test_a_budget_starts_full_and_is_filled_by_time_and_by_calls() -> None:
    budget = RepeatBudget(share=0.5, per_s=2.0, most=2)
    assert [budget.take(0.0) for _ in range(3)] == [True, True, False]
    assert [budget.take(500.0), budget.take(500.0)] == [True, False]
    budget.called()
    budget.called()
    assert [budget.take(500.0), budget.take(500.0)] == [True, False]


@given(st.lists(st.one_of(st.none(), st.just(0.0), st.floats(0, 500)), max_size=200))
def test_repeats_never_exceed_what_calls_and_time_allow(steps: list[float | None]) -> None:
    """None is a call; a number is time that passes, and a repeat that is asked for."""
    budget = RepeatBudget(share=0.1, per_s=3.0, most=5.0)
    now_ms, calls, taken = 0.0, 0, 0
    for step in steps:
        if step is None:
            budget.called()
            calls += 1
        else:
            now_ms += step
            taken += budget.take(now_ms)
        assert taken <= 5.0 + 0.1 * calls + 3.0 * now_ms / 1000 + 1e-6
