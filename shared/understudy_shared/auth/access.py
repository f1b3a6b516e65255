"""The access check of a service: every request passes it before routing, in the protocol or in ASGI.

The protocol calls `lookup` and `peer` for requests that it can answer without ASGI. If they do not grant a request, it
takes the ASGI way, where `admitted` grants it or answers with the problem. So refusals are implemented only once.

A service listens beyond loopback without credentials, or without TLS for them, only by an explicit setting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from understudy_shared.auth.audit import APPLICATION, AuditedRequest, AuditLog, asked_of, peer_of
from understudy_shared.auth.authentication import KnownCredentials, Refused
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.auth.credentials import Credentials
from understudy_shared.auth.permissions import Need, NeedKind, granted, need_of, no_peer, rate_limited, shown_problem
from understudy_shared.auth.presented import (
    Granted,
    Presented,
    PresentedToken,
    Session,
    new_session,
    presented_in,
    session_in,
)
from understudy_shared.auth.principals import ANONYMOUS, PEER, UNGUARDED, Authorization, Principal
from understudy_shared.auth.rates import Limited
from understudy_shared.auth.sign_in import PATHS, Signing, asking, signing, wants_page
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.files import WatchedFile
from understudy_shared.http.edge import App, Receive, Scope, Send, send_problem, without_body
from understudy_shared.http.html_pages import is_for_people, send_problem_page
from understudy_shared.http.opener import is_loopback
from understudy_shared.http.origins import Cors, why_refused
from understudy_shared.http.problems import Problem, ProblemType, problem_of
from understudy_shared.http.target import (
    APPLICATIONS,
    STORES,
    application_name,
    application_target,
    unknown_application,
)
from understudy_shared.tls.service_tls import metrics_of
from understudy_shared.tls.trouble import NO_CERTIFICATE, PEER_TROUBLE, TlsSide, TlsTrouble


class Exposure(StrEnum):
    """An exposure to other machines that `insecure_bind` allows. The text is for people."""

    UNGUARDED = "it asks for no credential"
    IN_PLAIN = "credentials come to it without TLS"


class Guard(NamedTuple):
    """The protection of a service's port.

    `asks`: the service answers no unknown client. `takes_credentials`: keys, tokens or the cluster's key are sent to
    it. `is_encrypted`: the port speaks TLS, or a setting says that something in front of it does.
    """

    asks: bool
    takes_credentials: bool
    is_encrypted: bool


def exposure_of(host: str, guard: Guard, *, insecure_bind: bool) -> Exposure | None:
    """Return the exposure to other machines, or None. Raises SettingsError unless `insecure_bind` allows it."""
    exposure = None if is_loopback(host) else _exposure(guard)
    if exposure is None or insecure_bind:
        return exposure
    where = host or "every interface"
    if exposure is Exposure.UNGUARDED:
        raise SettingsError(
            f"other machines reach {where}, and it asks for no credential",
            where="host",
            fix="Give --credentials-file (understudy keys new writes one), or listen on 127.0.0.1. Where the network "
            "keeps strangers out: --insecure-bind, or UNDERSTUDY_INSECURE_BIND=true",
        )
    raise SettingsError(
        f"other machines reach {where}, and credentials would come to it without TLS, readable on the way",
        where="host",
        fix="Give --tls-cert-file and --tls-key-file, or listen on 127.0.0.1. Where an ingress, a proxy or a mesh ends "
        "TLS in front of this port: --external-tls-termination, or UNDERSTUDY_EXTERNAL_TLS_TERMINATION=true. Where "
        "no stranger can listen: --insecure-bind",
    )


def _exposure(guard: Guard) -> Exposure | None:
    if not guard.asks:
        return Exposure.UNGUARDED
    return Exposure.IN_PLAIN if guard.takes_credentials and not guard.is_encrypted else None


log = logging.getLogger(__name__)

AUTHORIZATION = "understudy.authorization"
IS_KNOWN = "understudy.is_known"
REGRANT = "understudy.regrant"
"""Keys in the scope of a request: for its grant, for a function that checks whether its credential still counts, and
for one that returns its current grant.
"""

ISSUER_LIMIT_S = 3.0
"""Seconds for which a request waits for an issuer's signing keys."""

_LOOKUPS = (b"keys/", b"keys?", b"lookup")
"""The beginnings of a lookup's path, after its store."""


Choose = Callable[[bytes, Principal], str | None]
"""A function that returns the application of a path for a principal; None if no single application answers.

It raises the problem of an unknown or ambiguous application. Applications and stores that the principal may not see
count as missing.
"""

_NAME_AT = len(APPLICATIONS)
_STORES_BELOW = STORES.removeprefix(b"/v1")
_ENCODED = frozenset("%?#")


class ServedApplications:
    """The applications of a service, for the access check."""

    def __init__(self) -> None:
        self.own = ""
        """The application of a process that serves one. Until it is set, grants limited to applications never match."""
        self.choose: Choose | None = None
        """The function of a process with many applications that chooses one."""

    def of(self, raw_path: bytes, principal: Principal) -> str | Problem | None:
        """Return the application of a request, None if no single one answers, or the problem that it is unknown."""
        try:
            if self.choose is not None:
                return self.choose(raw_path, principal)
            named = application_target(raw_path)[0]
            name = self.own if named is None else application_name(named)
        except UnderstudyError as error:
            return problem_of(error)
        is_here = named is None or (name == self.own and principal.sees_application(name))
        return name if is_here else unknown_application(name)

    def of_store(self, target: bytes, *, is_needed: bool) -> tuple[str, int] | None:
        """Return the application of a target below a store, and the offset of the store's name. Return None if the
        target must be decoded first, or the application chosen. `is_needed`: the grant depends on the application.
        """
        if target.startswith(STORES):
            is_known = self.choose is None and bool(self.own)
            if is_needed and not is_known:
                return None
            return "" if self.choose is not None else self.own, len(STORES)
        if not target.startswith(APPLICATIONS):
            return None
        end = target.find(b"/", _NAME_AT)
        name = target[_NAME_AT:end].decode("latin-1")
        is_plain = name.isascii() and name.isprintable() and _ENCODED.isdisjoint(name)
        is_here = self.choose is not None or name == self.own
        if end <= _NAME_AT or not (is_plain and is_here) or not target.startswith(_STORES_BELOW, end):
            return None
        return name, end + len(_STORES_BELOW)


class Access:
    """The access rules of a service. Without files no credential is needed (`is_on` is False).

    `accepts_peers`: the service answers internal calls, so it knows its peers by the cluster's secret.
    """

    def __init__(
        self,
        *,
        credentials: WatchedFile[Credentials] | None = None,
        identity: ClusterIdentity | None = None,
        accepts_peers: bool = False,
        exposure: Exposure | None = None,
        now_s: Callable[[], float] = time.time,
        audit: AuditLog | None = None,
        cors: Cors | None = None,
        root_path: str = "",
    ) -> None:
        """Load the rules. `exposure`: what is open to other machines, because `insecure_bind` allows it. `cors`: the
        other origins whose pages may read from the service; None: no other origin. `root_path`: the prefix under which
        a proxy publishes the service.
        """
        self.cors = cors
        self.root_path = root_path
        self.applications = ServedApplications()
        self.identity = identity or ClusterIdentity(None, "")
        self.exposure = exposure
        self.tls = self.identity.tls
        self._asks_certificates = self.tls is not None and self.tls.asks_peers
        self._knows_by_certificate = self._asks_certificates and self.identity.file is None
        self.is_on = (
            credentials is not None or (accepts_peers and self.identity.file is not None) or self._asks_certificates
        )
        self.refused: Counter[Refused] = Counter()
        self.audit = audit or AuditLog(self.identity.audit_secret)
        self._accepts_peers = accepts_peers
        self._now_s = now_s
        self._known = KnownCredentials(
            credentials, self.identity, accepts_peers=accepts_peers, audit=self.audit, now_s=now_s
        )
        self._principal = self._known.principal

    def __repr__(self) -> str:
        return f"Access({self._known})" if self.is_on else "Access(off)"

    # ---- the protocol's way

    def lookup(self, target: bytes, presented: Presented | None) -> Authorization | None:
        """Return the grant of a GET of one key; None: the ASGI way decides."""
        if presented is None:
            return None
        granted, known = presented.granted, self._known
        if (
            granted is None
            or known.keys.get(presented.key_id) is not granted.key  # the credential was revoked, or its grants changed
            or granted.key.expires_s <= self._now_s()
            or not target.startswith(granted.begins)
        ):
            granted = presented.granted = self._granted(target, presented)
            if granted is None:
                return None
        if not target.startswith(_LOOKUPS, len(granted.begins)):
            return None  # not a lookup: the ASGI way decides about it, and counts it
        if known.rates is not None and self._held(granted.authorization.principal, granted.application) is not None:
            return None
        return granted.authorization

    def _granted(self, target: bytes, presented: Presented) -> Granted | None:
        """Return the grant of lookups in the store of this target."""
        principal, rates = self._principal(presented), self._known.rates
        if principal is None or presented.proven is None:
            return None
        is_needed = principal.is_limited or (rates is not None and bool(rates.limits.applications))
        application, at = self.applications.of_store(target, is_needed=is_needed) or ("", -1)
        end = target.find(b"/", at) if at >= 0 else -1
        if end < 0:
            return None
        found = principal.within(application).points(target[at:end])
        return None if found is None else Granted(presented.proven, target[: end + 1], found, application)

    def _held(self, principal: Principal, application: str | None) -> Problem | None:
        """Return a problem if a principal or an application is above its rate; else count the request, return None."""
        rates, now_s = self._known.rates, self._now_s()
        if rates is None or principal.is_peer:
            return None
        limited, wait_s = Limited.PRINCIPAL, rates.wait_s(Limited.PRINCIPAL, principal.name, now_s)
        if not wait_s and application is not None:
            limited, wait_s = Limited.APPLICATION, rates.wait_s(Limited.APPLICATION, application, now_s)
        return rate_limited(limited, wait_s) if wait_s else None

    def peer(self, presented: Presented | None, trouble: TlsTrouble | None = None) -> bool:
        """Whether an internal call comes from a peer. `trouble`: why the connection's certificate is not a peer's.
        False: the ASGI way decides.
        """
        if self._asks_certificates and (trouble is not None or self._knows_by_certificate):
            return trouble is None
        principal = None if presented is None else self._principal(presented)
        return principal is not None and principal.is_peer

    # ---- the ASGI way

    def admitted(self, scope: Scope, app: App) -> App:
        """Return the application for one request: `app`, or one that answers with the problem of a refusal."""
        has_sessions = bool(self.identity.session_keys)
        if scope["raw_path"] in PATHS and not self._accepts_peers:
            return signing(self._signing(scope), has_sessions=has_sessions)
        presented = presented_in(scope["headers"]) or session_in(scope["headers"])
        awaited = self._known.awaited(presented)
        if awaited is not None:
            return self._after(awaited, presented, app)
        return self._decided(scope, presented, app)

    def _after(self, awaited: asyncio.Task[None], presented: Presented | None, app: App) -> App:
        """Return an application that decides once the issuer of a token's key has answered or timed out."""

        async def decide_then(scope: Scope, receive: Receive, send: Send) -> None:
            await asyncio.wait([awaited], timeout=ISSUER_LIMIT_S)
            await self._decided(scope, presented, app)(scope, receive, send)

        return decide_then

    def _decided(self, scope: Scope, presented: Presented | None, app: App) -> App:
        trouble = scope.get(PEER_TROUBLE, NO_CERTIFICATE) if self._asks_certificates else None
        decided, application = self.decide(scope["method"], scope["raw_path"], presented, trouble)
        if trouble is not None and self.tls is not None and decided == no_peer(trouble):
            self.tls.note(TlsSide.ACCEPT, trouble, peer_of(scope))
        if isinstance(decided, Authorization) and isinstance(presented, Session):
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            # A page of another site can make a browser send its cookie.
            decided = why_refused(scope["method"], headers) or decided
        if isinstance(decided, Authorization):
            scope[AUTHORIZATION], scope[APPLICATION] = decided, application
            if presented is not None:
                scope[IS_KNOWN] = partial(self._is_known, presented)
                scope[REGRANT] = partial(self._regrant, scope["method"], scope["raw_path"], application, presented)
            return app
        self._note_refused(decided, scope, presented)
        if wants_page(scope) and not self._accepts_peers:
            signed_in = self._known.known(presented) if isinstance(presented, Session) else None
            name = None if signed_in is None else signed_in.name
            return asking(decided, has_sessions=bool(self.identity.session_keys), name=name)
        known = None if presented is None else self._known.known(presented)
        return _answering(decided if known is None else shown_problem(known, decided))

    def _is_known(self, presented: Presented) -> bool:
        return self._known.known(presented) is not None

    def _regrant(
        self, method: str, raw_path: bytes, application: str | None, presented: Presented, before: Authorization
    ) -> Authorization | None:
        known = self._known.known(presented)
        principal = known.within(application) if known is not None and application is not None else known
        if principal is None or principal is before.principal:
            return None if principal is None else before
        found = granted(principal, need_of(method, raw_path), raw_path)
        return None if isinstance(found, Problem) else found

    def _signing(self, scope: Scope) -> Signing:
        """Return the actions by which the browser of this request signs in and out."""
        peer = peer_of(scope)

        def sign_in(text: str) -> str | Problem:
            presented = presented_in([(b"authorization", b"Bearer " + text.encode("latin-1", "replace"))])
            key = None if presented is None else self._known.key_of(presented)
            principal = None if presented is None else self._principal(presented)
            is_key = not isinstance(presented, PresentedToken)  # a session may outlive a token
            if presented is None or key is None or principal is None or not (is_key and self.identity.session_keys):
                refused = self._unauthenticated(presented)
                self._note_refused(refused, scope, presented)
                return refused
            self.audit.signed(principal, peer, is_in=True, key_id=presented.key_id)
            return new_session(key, self.identity.session_keys[0], self._now_s())

        def sign_out() -> None:
            session = session_in(scope["headers"])
            principal = self._known.known(session)
            if session is not None and principal is not None:
                self.audit.signed(principal, peer, is_in=False, key_id=session.key_id)

        signed_in = self._known.known(session_in(scope["headers"]))
        return Signing(sign_in, sign_out, None if signed_in is None else signed_in.name)

    def decide(
        self, method: str, raw_path: bytes, presented: Presented | None, trouble: TlsTrouble | None = NO_CERTIFICATE
    ) -> tuple[Authorization | Problem, str | None]:
        """Return the grant of a request or the problem of its refusal, and its application. Count refusals. `trouble`:
        why the certificate of the connection is not a peer's. It is ignored if no certificates are required.
        """
        # One function, to show the order of the refusals: no refusal may reveal more than the one before it.
        try:
            need: Need | Problem = need_of(method, raw_path)
        except UnderstudyError as error:
            need = problem_of(error)
        principal = self._known.known(presented)
        if isinstance(need, Need) and need.kind is NeedKind.NOTHING:
            principal, served = principal or ANONYMOUS, self.applications
            return Authorization(principal if served.choose is not None else principal.within(served.own)), None
        if self._asks_certificates:
            is_internal = isinstance(need, Need) and need.kind is NeedKind.PEER
            if trouble is not None and (is_internal or (principal is not None and principal.is_peer)):
                self.refused[Refused.NO_PEER_CERTIFICATE] += 1
                return no_peer(trouble), None
            if trouble is None and principal is None and self._knows_by_certificate:
                principal = PEER
        if principal is None:
            return self._unauthenticated(presented), None
        if isinstance(need, Problem):
            return need, None
        found = self.applications.of(raw_path, principal)
        application = None if isinstance(found, Problem) else found
        held = self._held(principal, application)
        if held is not None:
            self.refused[Refused.RATE_LIMITED] += 1
            return held, None
        there = principal if application is None else principal.within(application)
        decided = found if isinstance(found, Problem) else granted(there, need, raw_path)
        if isinstance(decided, Problem):
            self.refused[Refused.NOT_GRANTED] += 1
        return decided, application

    def _unauthenticated(self, presented: Presented | None) -> Problem:
        why = self._known.why_unknown(presented)
        self.refused[why.refused] += 1
        return Problem(ProblemType.UNAUTHENTICATED, why.told, "header Authorization", _HOW)

    def _note_refused(self, problem: Problem, scope: Scope, presented: Presented | None) -> None:
        """Write a refusal to the audit log, with no part of the credential except the id of a known key."""
        asked = asked_of(scope["raw_path"], scope.get("query_string", b""))
        key = None if presented is None else self._known.key_of(presented)
        key_id = "" if key is None or isinstance(presented, PresentedToken) else key.key_id
        if problem.type is ProblemType.UNAUTHENTICATED:
            principal, reason = ANONYMOUS, self._known.why_unknown(presented).logged
        else:
            principal, reason = self._known.known(presented) or ANONYMOUS, problem.type.slug
        self.audit.refused(AuditedRequest(principal, peer_of(scope), scope["method"], asked), reason, key_id=key_id)

    def key_refused(self, principal: Principal, peer: str, method: str, target: bytes) -> None:
        """Write to the audit log that a request named a key outside of its credential's grant."""
        path, _, query = target.partition(b"?")
        self.audit.refused(AuditedRequest(principal, peer, method, asked_of(path, query)), ProblemType.FORBIDDEN.slug)

    # ---- the service's side

    def start(self) -> None:
        """Begin to watch the files, on the running loop. Log a warning if the service is exposed to other machines."""
        if self.exposure is not None:
            log.warning(
                "INSECURE: other machines may reach this service, and %s (insecure_bind)",
                self.exposure,
                extra={"action": "insecure-bind"},
            )
        self._known.start()

    def stop(self) -> None:
        self._known.stop()

    def look(self) -> None:
        self._known.look()

    def causes(self) -> dict[str, str]:
        """Return why the service is degraded, by cause; empty while its files can be used and its issuers answer."""
        return self._known.causes()

    def metrics(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "understudy_insecure_bind",
            "1: other machines may reach this service without credentials, or with credentials and without TLS",
            self.exposure is not None,
        )
        refused = CounterMetricFamily(
            "understudy_auth_refusals", "Requests refused for want of a credential or a grant", labels=("reason",)
        )
        for reason in Refused:
            refused.add_metric((reason,), self.refused[reason])
        yield refused
        yield from self.audit.metrics()
        yield from metrics_of(self.tls)


_HOW = (
    "Send Authorization: Bearer <key or token>. The command line takes it from UNDERSTUDY_API_KEY or from the file "
    "that UNDERSTUDY_API_KEY_FILE names"
)


def authorization_of(scope: Scope) -> Authorization:
    """Return the grant of a request. It is everything if no credential is needed."""
    found: Authorization = scope.get(AUTHORIZATION, UNGUARDED)
    return found


def session_name(scope: Scope) -> str | None:
    """Return the principal of the browser's session; None without a session."""
    return None if session_in(scope["headers"]) is None else authorization_of(scope).principal.name or None


def is_known(scope: Scope) -> Callable[[], bool]:
    """Return a function that returns whether the credential still counts. Endless answers call it now and then."""
    found: Callable[[], bool] = scope.get(IS_KNOWN, lambda: True)
    return found


def regranted(scope: Scope, before: Authorization) -> Authorization | None:
    """Return the current grant of a request that was granted `before`; None if it has lost it. Endless answers call
    this now and then.
    """
    regrant: Callable[[Authorization], Authorization | None] | None = scope.get(REGRANT)
    return before if regrant is None else regrant(before)


def _answering(problem: Problem) -> App:
    async def refuse(scope: Scope, _receive: Receive, send: Send) -> None:
        if is_for_people(scope):
            await send_problem_page(scope, send, problem)
            return
        await send_problem(without_body(send) if scope["method"] == "HEAD" else send, problem)

    return refuse
