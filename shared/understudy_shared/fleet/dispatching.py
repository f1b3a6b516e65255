"""The application of a process that serves many: it finds the one that a request is for, and hands it over.

What no single application answers (probes, metrics, the list of applications) goes to `own`. A process of one
application has no dispatcher: its server calls the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any, Generic, Protocol, TypeVar

from understudy_shared.auth.access import AUTHORIZATION, Access, authorization_of
from understudy_shared.auth.audit import APPLICATION
from understudy_shared.auth.audit import PREFIX as AUDITED
from understudy_shared.auth.principals import ANYBODY, Principal
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.fleet.application_routing import DRAIN, INTERNAL, Chosen, application_of, chosen, judged
from understudy_shared.fleet.shared_threads import APPLICATION as APPLICATION_NOW
from understudy_shared.http.edge import App, Receive, Scope, Send, enter, send_problem, without_body
from understudy_shared.http.problems import ProblemError, problem_of
from understudy_shared.http.target import application_target, named_application, unknown_application
from understudy_shared.questions.front import LookupsFirst
from understudy_shared.server.direct import AnswersBodies, DirectExchange, Exchange, reply_problem
from understudy_shared.telemetry.logs import name_records_here


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
    """The ASGI application in front of many. `applications` changes while it runs; a request stays where it began.
    `unknown_why` returns why not all applications are known, None once they are.
    """

    def __init__(self, own: App, access: Access, unknown_why: Callable[[], str | None] = lambda: None) -> None:
        self.access = access
        self.applications: dict[str, AnyServed] = {}
        self._apps: dict[str, LookupsFirst] = {}
        self._own = own
        self._unknown_why = unknown_why
        access.applications.choose = self._application

    def add(self, application_id: str, application: AnyServed) -> None:
        """Serve one more application from now on."""
        self.applications[application_id] = application
        self._apps[application_id] = application.app

    def remove(self, application_id: str) -> AnyServed | None:
        """Serve an application no longer. Its requests in flight are answered; its owner ends it."""
        self._apps.pop(application_id, None)
        return self.applications.pop(application_id, None)

    async def end_streams(self) -> None:
        """End the endless streams of all applications: the service stops."""
        await asyncio.gather(*[app.end_streams() for app in self._apps.values()])

    # ---- the ways in; `direct.py` has their contracts

    def answer_directly(self, target: bytes, exchange: Exchange) -> bool:
        try:
            found = self._chosen(target, exchange.authorization.principal)
        except UnderstudyError as error:
            reply_problem(exchange, problem_of(error))
            return True
        if found is None:
            return False
        before = APPLICATION_NOW.set(found.application_id)
        try:
            return self._apps[found.application_id].answer_directly(found.target, exchange)
        finally:
            APPLICATION_NOW.reset(before)

    def accepts_body(self, target: bytes, size_bytes: int) -> bool:
        """Whether one of the applications, which are all of one kind, answers this POST without ASGI."""
        return any(
            isinstance(app, AnswersBodies) and app.accepts_body(target, size_bytes) for app in self._apps.values()
        )

    def answer_body(self, body: bytes, exchange: Exchange) -> None:
        named = exchange.application if isinstance(exchange, DirectExchange) else None
        try:
            application_id = self._named(named)
        except UnderstudyError as error:
            reply_problem(exchange, problem_of(error))
            return
        app = self._apps[application_id]
        assert isinstance(app, AnswersBodies), "accepts_body said so"
        before = APPLICATION_NOW.set(application_id)
        try:
            app.answer_body(body, exchange)
        finally:
            APPLICATION_NOW.reset(before)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.access.is_on and scope["type"] == "http" and AUTHORIZATION not in scope:
            # Understudy's protocol has authorized the request before; another ASGI server has not.
            await self.access.admitted(scope, self)(scope, receive, send)
            return
        try:
            application_id = None if scope["type"] != "http" else self._entered(scope)
        except UnderstudyError as error:
            await send_problem(without_body(send) if scope["method"] == "HEAD" else send, problem_of(error))
            return
        if application_id is None:
            await self._answer_itself(scope, receive, send)
            return
        before = APPLICATION_NOW.set(application_id)
        try:
            await self._apps[application_id](scope, receive, send)
        finally:
            APPLICATION_NOW.reset(before)

    async def _answer_itself(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_audited = scope["type"] == "http" and (self.access.is_on or scope["raw_path"].startswith(AUDITED))
        if is_audited:  # an application has an audit of its own
            await self.access.audit.watch(self._own, scope, receive, send, authorization_of(scope).principal)
        else:
            await self._own(scope, receive, send)

    def _entered(self, scope: Scope) -> str | None:
        """Return the application of a request, whose path names it no longer; None: the fleet answers."""
        raw_path: bytes = scope["raw_path"]
        named = named_application(scope["headers"]) if raw_path.startswith(INTERNAL) or raw_path == DRAIN else None
        if raw_path.startswith(INTERNAL) or named is not None:
            return self._named(named)
        application_id: str | None
        if APPLICATION in scope:  # the access check has chosen it: what was granted holds there and nowhere else
            application_id, inner = scope[APPLICATION], application_target(raw_path)[1]
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
        """Return the application of a request of a principal; None where the fleet answers. Raises a problem."""
        found = self._chosen(raw_path, principal)
        return None if found is None else found.application_id

    def _chosen(self, target: bytes, principal: Principal) -> Chosen | None:
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
        """Return the application that an internal call names. Raises ProblemError."""
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
        """End the application, if it was started. Raises UnderstudyError if it did not end in good order."""
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
