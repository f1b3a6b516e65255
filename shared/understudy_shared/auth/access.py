"""The seam in front of a service: every request passes here before it is routed, on both ways in.

The protocol asks `lookup` and `peer` for what it would answer without ASGI, on each request. What they do not grant
takes the ASGI way, where `admitted` grants it or answers with the problem: refusing is written once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from understudy_shared.auth.api_keys import ApiKey, Presented, presented_in
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.auth.needs import Kind, Need, granted, need_of
from understudy_shared.auth.principals import ANONYMOUS, UNGUARDED, Authorization, Principal
from understudy_shared.auth.sessions import Session, new_session, session_in
from understudy_shared.auth.sign_in import PATH, asking, signing_in, wants_page
from understudy_shared.watched_file import WatchedFile
from understudy_shared.errors import UnderstudyError
from understudy_shared.http.connection_limits import PeerLog
from understudy_shared.http.cross_site import why_refused
from understudy_shared.http.edge import App, Receive, Scope, Send, send_problem, without_body
from understudy_shared.http.problems import Problem, ProblemType, problem_of
from understudy_shared.http.target import STORES

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""How often files are looked at: a revoked key is refused within two seconds."""

CREDENTIALS = "credentials"
"""The cause by which a service is degraded while a file of credentials cannot be used."""

AUTHORIZATION = "understudy.authorization"
IS_KNOWN = "understudy.is_known"
"""The keys in the scope of a request that hold what it was granted, and whether its credential still counts."""

_STORE_AT = len(STORES)


class Refused(StrEnum):
    """Why a request was refused: the labels of the metric."""

    NO_CREDENTIAL = "no-credential"
    UNKNOWN_CREDENTIAL = "unknown-credential"
    EXPIRED_CREDENTIAL = "expired-credential"
    NOT_GRANTED = "not-granted"


class Access:
    """Who may ask a service what. Without files nobody is asked who he is (`is_on` is False).

    `accepts_peers`: the service answers internal calls, so it knows its peers by the cluster's secret.
    """

    def __init__(
        self,
        *,
        credentials: WatchedFile[dict[str, ApiKey]] | None = None,
        identity: ClusterIdentity | None = None,
        accepts_peers: bool = False,
        is_exposed: bool = False,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`is_exposed`: others than this machine may reach the service, and nobody is asked who he is."""
        self.identity = identity or ClusterIdentity(None, "")
        self.is_exposed = is_exposed
        self.is_on = credentials is not None or (accepts_peers and self.identity.file is not None)
        self.refused: Counter[Refused] = Counter()
        self._credentials = credentials
        self._accepts_peers = accepts_peers
        self._now_s = now_s
        self._keys: Mapping[str, ApiKey] = {}
        self._peers = PeerLog()
        self._next: asyncio.TimerHandle | None = None
        self._use()

    def __repr__(self) -> str:
        return f"Access({len(self._keys)} keys)" if self.is_on else "Access(off)"

    # ---- the protocol's way

    def lookup(self, target: bytes, presented: Presented | None) -> Authorization | None:
        """What a GET of one key is granted: `target` begins with STORES. None: the ASGI way decides."""
        principal = None if presented is None else self._principal(presented)
        if principal is None:
            return None
        end = target.find(b"/", _STORE_AT)
        segment = target[_STORE_AT:end]
        if end < 0 or b"%" in segment or b"?" in segment or not segment.isascii():
            return None
        return principal.points(segment.decode())

    def peer(self, presented: Presented | None) -> bool:
        """Whether an internal call comes from a peer. False: the ASGI way decides."""
        principal = None if presented is None else self._principal(presented)
        return principal is not None and principal.is_peer

    def _principal(self, presented: Presented) -> Principal | None:
        """Whose credential it is; None for one that is unknown, revoked or expired."""
        key = self._keys.get(presented.key_id)
        if key is None or not presented.proves(key) or key.expires_s <= self._now_s():
            return None
        return key.principal

    # ---- the ASGI way

    def admitted(self, scope: Scope, app: App, client: tuple[str, int] | None, now_s: float) -> App:
        """The application for one request: `app`, or one that answers with the problem of a refusal."""
        has_sessions = bool(self.identity.session_keys)
        if scope["raw_path"] == PATH and not self._accepts_peers:
            return signing_in(self._exchanged, has_sessions=has_sessions)
        presented = presented_in(scope["headers"]) or session_in(scope["headers"])
        decided = self.decide(scope["method"], scope["raw_path"], presented)
        if isinstance(decided, Authorization) and isinstance(presented, Session):
            decided = _unless_foreign(decided, scope)  # a browser sends a cookie wherever it is told to
        if isinstance(decided, Authorization):
            scope[AUTHORIZATION] = decided
            if presented is not None:
                scope[IS_KNOWN] = partial(self._is_known, presented)
            return app
        self._log(decided, scope, client, now_s)
        if wants_page(scope) and not self._accepts_peers:
            return asking(decided, has_sessions=has_sessions)
        return _answering(decided)

    def _known(self, presented: Presented | None) -> Principal | None:
        """Whose credential it is, of a key or a session; None for none that counts."""
        if not isinstance(presented, Session):
            return None if presented is None else self._principal(presented)
        key = self._keys.get(presented.key_id)
        is_of = key is not None and presented.is_of(key, self.identity.session_keys, self._now_s())
        return key.principal if key is not None and is_of else None

    def _is_known(self, presented: Presented) -> bool:
        return self._known(presented) is not None

    def _exchanged(self, text: str) -> str | Problem:
        """The cookie of a new session for a key, or why it is refused."""
        presented = presented_in([(b"authorization", b"Bearer " + text.encode("latin-1", "replace"))])
        if presented is None or self._principal(presented) is None or not self.identity.session_keys:
            return self._unauthenticated(presented)
        return new_session(self._keys[presented.key_id], self.identity.session_keys[0], self._now_s())

    def decide(self, method: str, raw_path: bytes, presented: Presented | None) -> Authorization | Problem:
        """What a request is granted, or why it is refused. A refusal is counted."""
        try:
            need: Need | Problem = need_of(method, raw_path)
        except UnderstudyError as error:
            need = problem_of(error)
        principal = self._known(presented)
        if isinstance(need, Need) and need.kind is Kind.NOTHING:
            return Authorization(principal or ANONYMOUS)
        if principal is None:
            return self._unauthenticated(presented)
        if isinstance(need, Problem):
            return need
        decided = granted(principal, need, raw_path)
        if isinstance(decided, Problem):
            self.refused[Refused.NOT_GRANTED] += 1
        return decided

    def _unauthenticated(self, presented: Presented | None) -> Problem:
        refused, what = Refused.NO_CREDENTIAL, "the request has no credential"
        if presented is not None:
            refused, what = Refused.UNKNOWN_CREDENTIAL, "the credential is not one of this service"
            key = self._keys.get(presented.key_id)
            if isinstance(presented, Session):
                refused, what = Refused.EXPIRED_CREDENTIAL, "the session has ended"
            elif key is not None and presented.proves(key):
                refused, what = Refused.EXPIRED_CREDENTIAL, "the key has expired"
        self.refused[refused] += 1
        return Problem(ProblemType.UNAUTHENTICATED, what, "header Authorization", _HOW)

    def _log(self, problem: Problem, scope: Scope, client: tuple[str, int] | None, now_s: float) -> None:
        """One line for a peer in a minute; the metric counts all. A path may hold a key, so none is logged."""
        host = client[0] if client else "unknown"
        if self._peers.is_news(host, now_s):
            log.warning(
                "a request was refused: %s (peer %s); no more of this peer for a minute",
                problem.detail if problem.type is ProblemType.UNAUTHENTICATED else problem.type.slug,
                host,
                extra={"action": "access-refused", "reason": problem.type.slug, "peer": host},
            )

    # ---- the service's side

    def start(self) -> None:
        """Begin to look at the files, on the running loop. A service that strangers reach says so."""
        if self.is_exposed:
            log.warning(
                "INSECURE: other machines may reach this service, and it asks nobody for a credential (insecure_bind)",
                extra={"action": "insecure-bind"},
            )
        self._look_later()

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def look(self) -> None:
        """Read again what changed, and use it. It blocks."""
        self._use_if(self._read())

    def causes(self) -> dict[str, str]:
        """Why the service is degraded, by cause; empty while its files can be used."""
        files = (self._credentials, self.identity.file)
        refused = [file.refused for file in files if file is not None and file.refused is not None]
        return {CREDENTIALS: f"credentials are as they were: {'; '.join(refused)}"} if refused else {}

    def metrics(self) -> Iterator[Metric]:
        """The metrics of access."""
        yield GaugeMetricFamily("understudy_auth_enabled", "Whether requests need a credential", self.is_on)
        yield GaugeMetricFamily(
            "understudy_insecure_bind",
            "1: other machines may reach this service, and it asks nobody for a credential",
            self.is_exposed,
        )
        refused = CounterMetricFamily(
            "understudy_auth_refusals", "Requests refused for want of a credential or a grant", labels=("reason",)
        )
        for reason in Refused:
            refused.add_metric((reason,), self.refused[reason])
        yield refused

    def _look_later(self) -> None:
        if self._credentials is not None or self.identity.file is not None:
            self._next = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look_beside)

    def _look_beside(self) -> None:
        """Look in a thread: a file system may hang, and a large file takes longer than a lookup may wait."""
        looking = asyncio.get_running_loop().run_in_executor(None, self._read)
        looking.add_done_callback(self._looked)

    def _looked(self, looking: asyncio.Future[bool]) -> None:
        if looking.cancelled() or self._next is None:
            return
        error = looking.exception()
        if error is not None:
            log.error("credentials could not be looked at", exc_info=error, extra={"action": "credentials-failed"})
        else:
            self._use_if(looking.result())
        self._look_later()

    def _read(self) -> bool:
        is_new = self._credentials is not None and self._credentials.look()
        return self.identity.look() or is_new

    def _use_if(self, is_new: bool) -> None:
        if is_new:
            self._use()

    def _use(self) -> None:
        keys = {} if self._credentials is None else self._credentials.value
        self._keys = {**keys, **self.identity.keys} if self._accepts_peers else keys


_HOW = (
    "Send Authorization: Bearer <key>. The command line takes the key from UNDERSTUDY_API_KEY or from the file that "
    "UNDERSTUDY_API_KEY_FILE names"
)


def authorization_of(scope: Scope) -> Authorization:
    """What a request was granted: everything, where nobody is asked who he is."""
    found: Authorization = scope.get(AUTHORIZATION, UNGUARDED)
    return found


def is_known(scope: Scope) -> Callable[[], bool]:
    """Whether the credential of a request still counts: what answers without an end asks it now and then."""
    found: Callable[[], bool] = scope.get(IS_KNOWN, lambda: True)
    return found


def _unless_foreign(authorization: Authorization, scope: Scope) -> Authorization | Problem:
    """The problem of a change that a page of another site sends by a session."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return why_refused(scope["method"], headers) or authorization


def _answering(problem: Problem) -> App:
    async def refuse(scope: Scope, _receive: Receive, send: Send) -> None:
        await send_problem(without_body(send) if scope["method"] == "HEAD" else send, problem)

    return refuse
