"""The dispatcher of a process with many applications: it finds the application of a request, and passes the request on.

Requests that concern no single application (probes, metrics, the list of applications) go to `own`. A process with one
application has no dispatcher: its server calls the application.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from understudy_shared.auth.access import AUTHORIZATION, Access, authorization_of
from understudy_shared.auth.audit import APPLICATION as CHOSEN
from understudy_shared.auth.audit import is_of_operators
from understudy_shared.auth.permissions import hidden_store, shown_problem
from understudy_shared.auth.principals import ANYBODY, Principal
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import clipped
from understudy_shared.http.edge import App, Receive, Scope, Send, enter, send_problem, without_body
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import (
    STORES,
    application_name,
    application_target,
    named_application,
    named_store,
    split_path,
    unknown_application,
)
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.server.direct import AnswersBodies, DirectExchange, Exchange, reply_problem
from understudy_shared.telemetry.logs import name_records_here

APPLICATION: ContextVar[str] = ContextVar("application", default="")
"""The application that answers this request; empty for all other work of the process."""


class _Call(NamedTuple):
    """A blocking call that waits for a thread."""

    future: Future[Any]
    run: Callable[[], Any]


class SharedThreads(ThreadPoolExecutor):
    """The pool. Calls of a request wait for its application's share of the threads; other calls take any thread."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, name)
        self._count = count
        self._lock_of_shares = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Call]] = {}
        """The waiting calls by application. The application that waits longest for its turn comes first."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        application = APPLICATION.get()
        if not application:
            return super().submit(fn, *args, **kwargs)
        call = _Call(Future(), partial(fn, *args, **kwargs))
        with self._lock_of_shares:
            self._waiting.setdefault(application, deque()).append(call)
        self._begin_what_may()
        return call.future

    def _begin_what_may(self) -> None:
        while (found := self._next()) is not None:
            application, call = found
            try:
                super().submit(self._run, application, call)
            except RuntimeError as error:  # the pool was shut down
                self._ended(application)
                call.future.set_exception(error)

    def _next(self) -> tuple[str, _Call] | None:
        """Take a call that may begin now; return None if every waiting application already uses its share."""
        with self._lock_of_shares:
            free = self._count - self._running.total()
            for application, calls in self._waiting.items():
                if self._running[application] < free:
                    call = calls.popleft()
                    del self._waiting[application]
                    if calls:
                        self._waiting[application] = calls  # behind the others
                    self._running[application] += 1
                    return application, call
        return None

    def _run(self, application: str, call: _Call) -> None:
        try:
            if call.future.set_running_or_notify_cancel():
                try:
                    call.future.set_result(call.run())
                except BaseException as error:
                    call.future.set_exception(error)
        finally:
            self._ended(application)
            self._begin_what_may()

    def _ended(self, application: str) -> None:
        with self._lock_of_shares:
            self._running[application] -= 1
            if not self._running[application]:
                del self._running[application]


MAX_NAMED = 10
"""Number of applications that a text about the whole process names."""

INTERNAL = b"/internal/"
DRAIN = b"/admin/v1/drain"
_OF_STORES = (STORES, b"/v1/stores", b"/v1/read", b"/v1/snapshots")
"""Beginnings of paths that one application answers, although the path names none of them."""


class ChosenApplication(NamedTuple):
    """The application of a request, by its id, and the target of the request in it."""

    application_id: str
    target: bytes


def everything(_application: str, _store: str) -> bool:
    return True


def chosen(
    target: bytes,
    applications: Mapping[str, LookupsFirst],
    is_ready: Callable[[str], bool],
    sees: Callable[[str, str], bool] = everything,
    *,
    are_all: bool = True,
) -> ChosenApplication | None:
    """Choose the application of a request for `target`, a path with or without its query; None: the fleet answers.

    `applications` are those that the client may see; `sees` says whether it may see a store of one. Hidden ones affect
    neither the choice nor a problem. `are_all`: there are no others, so a single one answers requests that name no
    application. Raises a problem: unknown-application, unknown-store, ambiguous-store, or
    not-initialised.
    """
    named, inner = application_target(target)
    if named is not None:
        name = application_name(named)
        if name not in applications:
            raise ProblemError(unknown_application(name))
        return ChosenApplication(name, inner)
    path = target.partition(b"?")[0]
    if are_all and len(applications) == 1 and path.startswith(_OF_STORES):
        return ChosenApplication(next(iter(applications)), target)
    if not path.startswith(STORES):
        return None
    _, _, store, *call = split_path(path)
    store = store if call else named_store(store)[0]
    seen = {each: application for each, application in applications.items() if sees(each, store)}
    if not seen:
        raise ProblemError(hidden_store(store))
    return ChosenApplication(_only_one_with(store, seen, is_ready), target)


def _only_one_with(store: str, applications: Mapping[str, LookupsFirst], is_ready: Callable[[str], bool]) -> str:
    having = [each for each, application in applications.items() if application.has_store(store)]
    if len(having) == 1:
        return having[0]
    if having:
        detail = f"{clipped(store)} is a store of {_named(having)}"
        fix = "Name the application: /v1/applications/{application}/stores/{store}"
        extra: dict[str, object] = {"applications": sorted(having)[:MAX_NAMED]}
        raise ProblemError(Problem(ProblemType.AMBIGUOUS_STORE, detail, "path", fix, extra))
    waiting = [each for each in applications if not is_ready(each)]
    if waiting:
        detail = f"no application has a store {clipped(store)} yet, and {_named(waiting)} did not say which they have"
        raise ProblemError(Problem(ProblemType.NOT_INITIALISED, detail, "path", "Retry, or name the application"))
    fix = "GET /v1/stores lists the stores of all applications"
    raise ProblemError(Problem(ProblemType.UNKNOWN_STORE, f"there is no store {clipped(store)}", "path", fix))


def judged(problem: Problem, unknown_why: str | None) -> Problem:
    """Return the problem; or, while not all applications are known, a not-initialised problem in place of "unknown"."""
    if unknown_why is None or problem.type not in {ProblemType.UNKNOWN_APPLICATION, ProblemType.UNKNOWN_STORE}:
        return problem
    return not_known(unknown_why)


def not_known(why: str) -> Problem:
    return Problem(ProblemType.NOT_INITIALISED, why, "path", "Retry when /readyz says so")


def application_of(named: bytes | None, applications: Collection[str]) -> str:
    """Return the application that an internal call names; without a name the only one, as for clients.

    Raises an unknown-application problem.
    """
    if named is None and len(applications) == 1:
        return next(iter(applications))
    name = "" if named is None else application_name(named)
    if name not in applications:
        raise ProblemError(unknown_application(name))
    return name


def _named(applications: Collection[str]) -> str:
    shown = ", ".join(clipped(each) for each in sorted(applications)[:MAX_NAMED])
    return shown + (f" and {len(applications) - MAX_NAMED} more" if len(applications) > MAX_NAMED else "")


class Served(Protocol):
    """One application of a fleet."""

    @property
    def app(self) -> LookupsFirst:
        """Its ASGI application."""

    @property
    def is_ready(self) -> bool:
        """Whether it knows its stores."""


AnyServed = TypeVar("AnyServed", bound=Served)


class Fleet(Generic[AnyServed]):
    """The ASGI application that dispatches to many. `applications` may change while it runs, but a request stays with
    its application. `unknown_why` returns why not all applications are known, None once they are.
    """

    def __init__(self, own: App, access: Access, unknown_why: Callable[[], str | None] = lambda: None) -> None:
        self.access = access
        self.applications: dict[str, AnyServed] = {}
        self._apps: dict[str, LookupsFirst] = {}
        self._own = own
        self._unknown_why = unknown_why
        access.applications.choose = self._application

    def add(self, application_id: str, application: AnyServed) -> None:
        self.applications[application_id] = application
        self._apps[application_id] = application.app

    def remove(self, application_id: str) -> AnyServed | None:
        """Stop dispatching to an application. Its requests in flight are answered; the caller must end it."""
        self._apps.pop(application_id, None)
        return self.applications.pop(application_id, None)

    async def end_streams(self) -> None:
        """End the endless streams of all applications, because the service stops."""
        await asyncio.gather(*[app.end_streams() for app in self._apps.values()])

    # ---- entry points; `direct.py` has their contracts

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        try:
            found = self._chosen(target, exchange.authorization.principal)
        except UnderstudyError as error:
            reply_problem(exchange, shown_problem(exchange.authorization.principal, problem_of(error)))
            return True
        if found is None:
            return False
        before = APPLICATION.set(found.application_id)
        try:
            return self._apps[found.application_id].answer_directly(found.target, exchange)
        finally:
            APPLICATION.reset(before)

    def accepts_body(self, target: bytes, size_bytes: int) -> bool:
        """Whether one of the applications, which are all of one kind, answers this POST without ASGI."""
        return any(
            isinstance(app, AnswersBodies) and app.accepts_body(target, size_bytes) for app in self._apps.values()
        )

    def answer_body(self, target: bytes, body: bytes, exchange: Exchange) -> None:
        named = exchange.application if isinstance(exchange, DirectExchange) else None
        try:
            application_id = self._named(named)
        except UnderstudyError as error:
            reply_problem(exchange, problem_of(error))
            return
        app = self._apps[application_id]
        assert isinstance(app, AnswersBodies), "accepts_body said so"
        before = APPLICATION.set(application_id)
        try:
            app.answer_body(target, body, exchange)
        finally:
            APPLICATION.reset(before)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.access.is_on and scope["type"] == "http" and AUTHORIZATION not in scope:
            # Understudy's protocol has authorized the request already; another ASGI server has not.
            await self.access.admitted(scope, self)(scope, receive, send)
            return
        try:
            application_id = None if scope["type"] != "http" else self._entered(scope)
        except UnderstudyError as error:
            problem = shown_problem(authorization_of(scope).principal, problem_of(error))
            await send_problem(without_body(send) if scope["method"] == "HEAD" else send, problem)
            return
        if application_id is None:
            await self._answer_itself(scope, receive, send)
            return
        before = APPLICATION.set(application_id)
        try:
            await self._apps[application_id](scope, receive, send)
        finally:
            APPLICATION.reset(before)

    async def _answer_itself(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_audited = scope["type"] == "http" and (self.access.is_on or is_of_operators(scope))
        if is_audited:  # an application has an audit of its own
            await self.access.audit.watch(self._own, scope, receive, send, authorization_of(scope).principal)
        else:
            await self._own(scope, receive, send)

    def _entered(self, scope: Scope) -> str | None:
        """Return the application of a request, and remove its name from the path; None: the fleet answers."""
        raw_path: bytes = scope["raw_path"]
        named = named_application(scope["headers"]) if raw_path.startswith(INTERNAL) or raw_path == DRAIN else None
        if raw_path.startswith(INTERNAL) or named is not None:
            return self._named(named)
        application_id: str | None
        if CHOSEN in scope:  # the access check has chosen the application: its grant holds for that one only
            application_id, inner = scope[CHOSEN], application_target(raw_path)[1]
        else:
            found = self._chosen(raw_path, ANYBODY)
            application_id, inner = (None, raw_path) if found is None else found
        if application_id is None:
            return None
        if application_id not in self._apps:  # it was removed since
            raise ProblemError(unknown_application(application_id))
        enter(scope, inner)
        return application_id

    def _application(self, raw_path: bytes, principal: Principal) -> str | None:
        """Return the application of a principal's request; None if the fleet answers. Raises a problem."""
        found = self._chosen(raw_path, principal)
        return None if found is None else found.application_id

    def _chosen(self, target: bytes, principal: Principal) -> ChosenApplication | None:
        seen = self._apps
        if principal.is_limited:
            seen = {each: app for each, app in seen.items() if principal.sees_application(each)}
        try:
            return chosen(
                target,
                seen,
                lambda each: self.applications[each].is_ready,
                lambda application, store: principal.within(application).sees(store),
                are_all=len(seen) != 1 or self._unknown_why() is None,
            )
        except ProblemError as error:
            raise ProblemError(judged(error.problem, self._unknown_why())) from None

    def _named(self, named: bytes | None) -> str:
        try:
            return application_of(named, self._apps)
        except ProblemError as error:
            raise ProblemError(judged(error.problem, self._unknown_why())) from None


class Lifespan:
    """Runs the lifespan of one ASGI application. `start` returns when it has started, `stop` when it has ended."""

    def __init__(self, app: App, name: str) -> None:
        self._app = app
        self._name = name
        self._wanted: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue(2)  # one startup, one shutdown
        self._said: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue(2)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the application. Raises UnderstudyError with the reason why it did not start."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"application {self._name}")
        await self._ask("lifespan.startup", "did not start")

    async def stop(self) -> None:
        """End the application, if it was started. Raises UnderstudyError if it did not end cleanly."""
        if self._task is not None and not self._task.done():
            await self._ask("lifespan.shutdown", "did not end in good order")
            await self._task

    async def _ask(self, what: str, failure: str) -> None:
        assert self._task is not None, "started"
        self._wanted.put_nowait({"type": what})
        said = asyncio.ensure_future(self._said.get())
        await asyncio.wait([said, self._task], return_when=asyncio.FIRST_COMPLETED)
        if not said.done():
            said.cancel()
            error = None if self._task.cancelled() else self._task.exception()
            raise UnderstudyError(f"it {failure}: {error}", where=f"application {self._name}")
        if said.result()["type"] == f"{what}.failed":
            raise UnderstudyError(f"it {failure}: {said.result().get('message')}", where=f"application {self._name}")

    async def _run(self) -> None:
        name_records_here(application=self._name)
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        await self._app(scope, self._wanted.get, self._said.put)
