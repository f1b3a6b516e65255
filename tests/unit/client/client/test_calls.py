"""How a call of the Python client goes on after each outcome: attempts share a deadline, and retries are few."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clients.steps import World, answer, found, problem, scripted

from understudy.client.core.call import call
from understudy.client.core.exchange import Failure, FailureKind, Outcome, Reply, Request, Send
from understudy.client.core.lookups import get_many
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.credentials import Credential
from understudy.client.errors import (
    BadReplyError,
    BadRequestError,
    DeadlineError,
    ForbiddenError,
    OverloadedError,
    UnauthenticatedError,
    UnavailableError,
    UnreachableError,
    WrongKeyError,
)
from understudy.client.results import Result
from understudy_shared.base.errors import UnderstudyError

GET = Request("GET", "/v1/stores/words/keys/a")
OK = answer({"found": True})
REFUSED = Failure(FailureKind.NOT_SENT, "cannot connect: Connection refused")
STALE = Failure(FailureKind.STALE, "closed")
CUT = Failure(FailureKind.CUT, "closed after 5 bytes")
LATE = Failure(FailureKind.TIMEOUT, "no reply in time")
GARBAGE = Failure(FailureKind.BAD_REPLY, "no HTTP reply")
PAGE = Reply(200, "text/html", b"<html>Sign in</html>")
BUSY = problem("overloaded", 429, retry_after="1")
BEHIND = problem("no-acceptable-replica", 503, retry_after="1")
LIMITED = problem("rate-limited", 429, retry_after="2")
BROKEN = problem("store-error", 502)
WRONG = problem("bad-key", 400)

OUTCOMES = (OK, REFUSED, STALE, CUT, LATE, GARBAGE, PAGE, BUSY, BEHIND, LIMITED, BROKEN, WRONG)


def ask(world: World, *urls: str, retries: int = 2, timeout_s: float = 5.0) -> object:
    state = world.state(*urls, retries=retries)
    return world.run(call(state, GET, world.now_s + timeout_s))


@pytest.mark.parametrize("outcome", [REFUSED, CUT, GARBAGE, PAGE, BUSY, BEHIND, BROKEN])
def test_what_one_server_cannot_another_is_asked_at_once(outcome: Outcome) -> None:
    assert outcome is not None
    world = scripted(outcome, OK)
    assert ask(world, "http://a", "http://b") == {"found": True}
    assert len(set(world.asked)) == 2
    assert world.waits == []


@pytest.mark.parametrize("wrong", [WRONG, problem("internal", 500), problem("unknown-store", 404)])
def test_a_request_that_would_be_refused_again_is_sent_once(wrong: Reply) -> None:
    world = scripted(wrong)
    with pytest.raises(UnderstudyError, match="it is"):
        ask(world, "http://a", "http://b")
    assert len(world.sent) == 1


def test_the_advice_of_a_server_is_kept_and_never_waited_for_beyond_the_deadline() -> None:
    world = scripted(BUSY, OK)
    ask(world)
    assert 1.0 <= world.waits[0] < 1.2
    late = scripted(BUSY, OK)
    with pytest.raises(OverloadedError):
        ask(late, timeout_s=0.9)
    assert late.waits == [], "an error now says more than one at the deadline"


def test_a_limit_of_the_principal_is_not_evaded_by_another_server() -> None:
    world = scripted(LIMITED, OK)
    ask(world, "http://a", "http://b")
    assert len(set(world.asked)) == 1
    assert world.waits[0] >= 2.0


def test_a_server_that_hangs_leaves_time_for_another() -> None:
    def served(send: Send, world: World) -> Outcome:
        if len(world.sent) == 1:
            world.now_s = send.deadline_s
            return LATE
        return OK

    world = World(served)
    began_s = world.now_s
    ask(world, "http://a", "http://b", timeout_s=4.0)
    assert world.sent[0].deadline_s == began_s + 2.0
    assert world.sent[1].deadline_s == began_s + 4.0


def test_a_server_that_failed_is_asked_last_until_its_pause_is_over() -> None:
    def served(send: Send, _: World) -> Outcome:
        return REFUSED if send.endpoint.host == down else OK

    world = World(served)
    state = world.state("http://a", "http://b")
    down = state.servers.endpoints[0].host
    for _ in range(5):
        world.run(call(state, GET, world.now_s + 5))
    assert world.asked.count(down) == 1
    world.now_s += 3600
    down = "neither"
    for _ in range(5):
        world.run(call(state, GET, world.now_s + 5))
    assert len(set(world.asked[-5:])) == 1, "a client stays where it is well served"


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (REFUSED, UnreachableError),
        (LATE, DeadlineError),
        (PAGE, BadReplyError),
        (WRONG, BadRequestError),
        (BEHIND, UnavailableError),
        (problem("unauthenticated", 401), UnauthenticatedError),
        (problem("forbidden", 403), ForbiddenError),
        (Reply(404, "application/json", b'{"found": true}'), BadReplyError),
        (Reply(200, "application/json", b"[1]"), BadReplyError),
        (Reply(200, "application/json", b'{"found": '), BadReplyError),
        (Reply(502, "text/html", b"<html>Bad gateway</html>"), BadReplyError),
    ],
)
def test_each_end_has_its_error_and_says_what_to_do(outcome: Outcome, error: type[UnderstudyError]) -> None:
    assert outcome is not None
    with pytest.raises(error) as raised:
        ask(scripted(outcome))
    assert type(raised.value) is error
    assert raised.value.fix
    if isinstance(raised.value, UnreachableError):
        assert raised.value.attempts[0].url == "http://a:1"


def test_a_refused_key_is_read_again_from_its_file_once(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")

    def served(send: Send, _: World) -> Outcome:
        return OK if ("authorization", "Bearer new") in send.headers else problem("unauthenticated", 401)

    world = World(served)
    state = world.state()
    state.credential = Credential("", path, "api_key_file")
    with pytest.raises(UnauthenticatedError):
        world.run(call(state, GET, world.now_s + 5))
    assert len(world.sent) == 1, "the file has what was refused"
    path.write_text("new\n")
    assert world.run(call(state, GET, world.now_s + 5)) == {"found": True}
    assert len(world.sent) == 3


@given(
    outcomes=st.lists(st.tuples(st.sampled_from(OUTCOMES), st.floats(0, 3)), min_size=1, max_size=12),
    servers=st.integers(1, 4),
    retries=st.integers(0, 5),
    timeout_s=st.floats(0.01, 10),
)
def test_a_call_ends_by_its_deadline_after_few_requests_whatever_servers_do(
    outcomes: list[tuple[Reply | Failure, float]], servers: int, retries: int, timeout_s: float
) -> None:
    def served(send: Send, world: World) -> Outcome:
        outcome, lasting_s = outcomes[min(len(world.sent), len(outcomes)) - 1]
        if lasting_s > send.deadline_s - world.now_s:
            world.now_s = send.deadline_s
            return LATE
        world.now_s += lasting_s
        return outcome

    world = World(served)
    deadline_s = world.now_s + timeout_s
    with suppress(UnderstudyError):
        found = ask(world, *[f"http://s{at}" for at in range(servers)], retries=retries, timeout_s=timeout_s)
        assert found == {"found": True}
    assert world.now_s <= deadline_s + 1e-6
    assert all(each.deadline_s <= deadline_s + 1e-6 for each in world.sent)
    assert 1 <= len(world.sent) <= 2 + servers + 2 * retries


@pytest.mark.parametrize("outcome", [BEHIND, BROKEN, CUT, LATE, PAGE])
def test_retries_are_a_tenth_of_the_calls_when_every_server_fails(outcome: Outcome) -> None:
    """Q53."""
    assert outcome is not None
    calls = 600
    world = scripted(outcome, lasting_s=0.001)
    state = world.state("http://a", "http://b")
    for _ in range(calls):
        with pytest.raises(UnderstudyError):
            world.run(call(state, GET, world.now_s + 5))
    waited_s = sum(world.waits) + 0.001 * len(world.sent)
    assert len(world.sent) <= 1.1 * calls + 0.3 * (waited_s + 10)


def test_calls_of_an_application_name_it_in_every_path_and_share_all_but_its_position() -> None:
    world = scripted(OK, OK, OK)
    state = world.state("http://a")
    inner = state.within("orders by region")
    for each, target in ((inner, GET.target), (inner, "/admin/v1/lag?store=words"), (state, GET.target)):
        world.run(call(each, GET._replace(target=target), world.now_s + 5))
    named = "/v1/applications/orders%20by%20region"
    assert [each.request.target for each in world.sent] == [
        f"{named}/stores/words/keys/a",
        f"/admin{named}/lag?store=words",
        GET.target,
    ]
    assert (inner.servers, inner.budget, inner.credential) == (state.servers, state.budget, state.credential)
    assert inner.position is not state.position


def batch(*items: dict[str, object]) -> Reply:
    return answer({"store": "words", "reads": [found("a")], "results": items})


READ_A: dict[str, object] = {"key": {"word": "a"}, "found": True, "value": {"count": 7}, "read": 0}
UNREAD: dict[str, object] = {"type": "deadline", "title": "t", "status": 504, "detail": "no replica answered in time"}


def get_two(world: World) -> list[Result[object]]:
    store = BoundStore(Reader(world.state()), "words")
    return world.run(get_many(store, ["a", "b"], {}, world.now_s + 5))


@pytest.mark.parametrize("outcome", [LATE, REFUSED, PAGE, BUSY, BEHIND, BROKEN, batch(READ_A, READ_A)])
def test_a_second_request_for_failed_keys_that_fails_itself_loses_no_result_of_the_first(outcome: Outcome) -> None:
    assert outcome is not None
    world = scripted(batch(READ_A, UNREAD), outcome)
    first, second = get_two(world)
    assert first.value == {"count": 7}
    assert isinstance(second.error, UnavailableError)
    assert (second.error.type, second.error.status) == ("deadline", 504)
    assert len(world.sent) > 1


def test_a_second_request_that_is_refused_or_answers_another_key_is_still_an_error() -> None:
    with pytest.raises(ForbiddenError):
        get_two(scripted(batch(READ_A, UNREAD), problem("forbidden", 403)))
    columns = [{"name": "word", "type": "string"}]
    schema = answer({"store": "words", "kind": "value", "key": columns, "value": []})
    with pytest.raises(WrongKeyError):
        get_two(scripted(batch(READ_A, UNREAD), batch(READ_A), schema))
