"""The audit log: refusals, operators' reads, changes and sign-ins. Granted lookups have no line.

Each event is one structured line of the logger `understudy_shared.auth.audit`. It has a mark of a key, never the key.
Requests cannot fill a disk: equal refusals and equal reads share one line per minute, and each kind of line has a
budget. Dropped lines are counted in the next line and as a metric.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Iterator, Mapping, MutableMapping
from enum import StrEnum
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, Metric

from understudy_shared.auth.principals import ANONYMOUS, ANYBODY, Principal
from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.texts import printable
from understudy_shared.base.throttles import LogThrottle, TokenBucket
from understudy_shared.http.edge import App, Receive, Scope, Send
from understudy_shared.http.origins import READING
from understudy_shared.http.target import (
    application_name,
    application_target,
    parse_query,
    refuse_unroutable,
    split_path,
)

MAX_SHOWN_CHARS = 200
"""Limit on the characters of a path or a name, so that lines have a bounded length."""

_CALLS = frozenset(("keys", "lookup", "history", "metadata", "scan", "count", "windows", "export", "changes", "watch"))
_FIXED = frozenset(("livez", "healthz", "readyz", "metrics", "openapi.json", "docs"))
UNKNOWN_ROUTE = "unknown"


class Asked(NamedTuple):
    """The subject of a request. `key` is its key as it was sent, which is never logged. `application` is set if the
    path names it.
    """

    route: str
    store: str = ""
    key: str = ""
    application: str = ""


def asked_of(raw_path: bytes, query: bytes = b"") -> Asked:
    """Read a path. An unknown path is not shown, because it may hold a key."""
    try:
        refuse_unroutable(raw_path)
        named, inner = application_target(raw_path)
        if named is not None:
            return asked_of(inner, query)._replace(application=shown(application_name(named)))
        match split_path(raw_path):
            case ["v1", "stores" | "read" as call]:
                return Asked(f"/v1/{call}")
            case ["v1", "snapshots", *_]:
                return Asked("/v1/snapshots")
            case ["v1", "stores", store]:
                return Asked("/v1/stores/{store}", shown(store))
            case ["v1", "stores", store, call, *key] if call in _CALLS:
                rest = "/{key}" if key else ""
                return Asked(f"/v1/stores/{{store}}/{call}{rest}", shown(store), "/".join(key) or _key_in(query))
            case ["admin", *rest]:
                return Asked(shown("/".join(["/admin", *rest])))
            case ["internal", "v1", call, *_]:
                return Asked(f"/internal/v1/{shown(call)[:40]}")
            case [name] if name in _FIXED:
                return Asked(f"/{name}")
            case _:
                return Asked(UNKNOWN_ROUTE)
    except UnderstudyError:
        return Asked(UNKNOWN_ROUTE)


def _key_in(query: bytes) -> str:
    try:
        return parse_query(query).get("key", "")
    except UnderstudyError:
        return ""


def mark_of(secret: bytes, asked: Asked) -> str:
    """Return the mark of a key: equal for equal keys of a store, and of no use without the secret."""
    said = f"{asked.store}\0{asked.key}".encode("utf-8", "surrogatepass")
    return hmac.digest(secret, said, "sha256")[:16].hex()


def shown(text: str) -> str:
    """Make a text from a client safe for a log line."""
    return printable(text[:MAX_SHOWN_CHARS])


def name_of(principal: Principal) -> str:
    return "anonymous" if principal in (ANONYMOUS, ANYBODY) else shown(principal.name)


log = logging.getLogger(__name__)

_OPERATORS, _ADMIN = b"/admin/v1/", b"/admin/"
_SESSIONS = (b"/admin/login", b"/admin/logout")
APPLICATION = "understudy.application"
"""Key in the scope of a request: the application in which it was granted, or None if it concerns no single one."""

NOTES = "understudy.audit"
"""Key in the scope of a request for the fields that its route adds to the line."""


class Audited(StrEnum):
    """The kinds of lines. Each is the `action` of its lines."""

    REFUSED = "audit-refused"
    CHANGE = "audit-change"
    READ = "audit-read"
    SESSION = "audit-session"
    KEYS = "audit-keys"


_OF_STRANGERS = (1.0, 60.0)
"""The budget for requests without a right: lines per second, and lines at once. At 500 bytes each, that is at most
50 MB a day.
"""
_OF_OPERATORS = (10.0, 200.0)
_BUDGETS = {
    Audited.REFUSED: _OF_STRANGERS,
    Audited.CHANGE: _OF_OPERATORS,
    Audited.READ: _OF_STRANGERS,
    Audited.SESSION: _OF_OPERATORS,
    Audited.KEYS: _OF_OPERATORS,
}


class AuditedRequest(NamedTuple):
    """An event: the principal, the request, and the address that it came from."""

    principal: Principal
    peer: str
    method: str
    asked: Asked


def is_of_operators(scope: Scope) -> bool:
    """Whether a request is a call of operators, or a form of the page that changes something. Sessions have lines of
    their own.
    """
    raw_path: bytes = scope["raw_path"]
    if raw_path.startswith(_OPERATORS):
        return True
    return raw_path.startswith(_ADMIN) and scope["method"] not in READING and not raw_path.startswith(_SESSIONS)


class AuditLog:
    """The audit log of one service. `secret` makes the marks of keys comparable between services and starts."""

    def __init__(self, secret: bytes | None = None, clock: Clock | None = None) -> None:
        self.dropped = dict.fromkeys(Audited, 0)
        """The number of dropped lines of each kind, because its budget was used up."""
        self._secret = secret or secrets.token_bytes(32)
        self._clock: Clock = clock or SystemClock()
        # One filter per kind, so that a flood of one kind does not displace others. Budgets bound and count the lines.
        self._throttles = {kind: LogThrottle(forgets=True) for kind in Audited}
        now_s = self._clock.monotonic_ms() / 1000
        self._budgets = {
            kind: TokenBucket(per_s=per_s, burst=burst, now_s=now_s) for kind, (per_s, burst) in _BUDGETS.items()
        }
        self._told = dict.fromkeys(Audited, 0)

    def refused(self, event: AuditedRequest, reason: str, *, key_id: str = "") -> None:
        """Log that a request was refused before anything was done. `key_id` is set if the credential is known."""
        fields = {"reason": reason, **({"key_id": key_id} if key_id else {})}
        self._write(Audited.REFUSED, event, "refused", fields, same=reason)

    def signed(self, principal: Principal, peer: str, *, is_in: bool, key_id: str) -> None:
        """Log that a principal signed in with a key, or out."""
        event = AuditedRequest(principal, peer, "POST", Asked("/admin/login" if is_in else "/admin/logout"))
        self._write(Audited.SESSION, event, "signed-in" if is_in else "signed-out", {"key_id": key_id})

    def keys_changed(self, added: list[str], removed: list[str]) -> None:
        """Log which keys the files gained and lost; a key that changed is in both lists."""
        fields = {"added": ",".join(added[:20]), "removed": ",".join(removed[:20]), "changed": len(added + removed)}
        if self._is_granted(Audited.KEYS):
            extra = {"action": str(Audited.KEYS), **fields, **self._left_out(Audited.KEYS)}
            log.warning("%d keys were added, %d removed", len(added), len(removed), extra=extra)

    async def watch(self, app: App, scope: Scope, receive: Receive, send: Send, principal: Principal) -> None:
        """Let `app` answer a request. If it is for operators, or ends with 403, log it with its outcome."""
        is_admin = is_of_operators(scope)
        notes: dict[str, object] = {}
        scope[NOTES] = notes
        is_told = False

        def tell(status: int | None) -> None:
            nonlocal is_told
            if not is_told and (is_admin or status == 403):
                self._answered(scope, principal, status, notes)
            is_told = True

        async def send_and_tell(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                tell(message["status"])
            await send(message)

        try:
            await app(scope, receive, send_and_tell)
        finally:
            tell(None)

    def _answered(self, scope: Scope, principal: Principal, status: int | None, notes: Mapping[str, object]) -> None:
        asked = asked_of(scope["raw_path"], scope.get("query_string", b""))
        asked = asked._replace(application=asked.application or shown(scope.get(APPLICATION) or ""))
        event = AuditedRequest(principal, peer_of(scope), scope["method"], asked)
        outcome = "unanswered" if status is None else str(status)
        if event.method not in READING and is_of_operators(scope):
            is_done = status is None or status < 400
            self._write(Audited.CHANGE, event, outcome, notes, same=None if is_done else outcome)
        elif status == 403:
            self.refused(event, "forbidden")
        else:
            self._write(Audited.READ, event, outcome, notes, same=outcome)

    def _write(
        self,
        kind: Audited,
        event: AuditedRequest,
        outcome: str,
        fields: Mapping[str, object],
        *,
        same: str | None = None,
    ) -> None:
        """Write a line, unless it repeats one with the same peer, principal, route, store and `same`."""
        principal, peer, method, asked = event
        left_out: dict[str, int] | None = {}
        if same is not None:
            alike = (peer, principal.name, asked.route, asked.application, asked.store, same)
            left_out = self._throttles[kind].admit(alike, self._clock.monotonic_ms())
        if left_out is None or not self._is_granted(kind):
            return
        who = name_of(principal)
        extra = {"principal": who, "peer": peer, "method": method, "route": asked.route, "outcome": outcome}
        extra |= {"application": asked.application} if asked.application else {}
        extra |= {"store": asked.store} if asked.store else {}
        extra |= {"key": mark_of(self._secret, asked)} if asked.key else {}
        log.log(
            logging.INFO if kind is Audited.READ else logging.WARNING,
            "%s %s by %s of %s: %s",
            method,
            asked.route,
            who,
            peer,
            outcome,
            extra={"action": str(kind), **extra, **fields, **self._left_out(kind), **left_out},
        )

    def _is_granted(self, kind: Audited) -> bool:
        is_granted = self._budgets[kind].take(self._clock.monotonic_ms() / 1000)
        self.dropped[kind] += not is_granted
        return is_granted

    def _left_out(self, kind: Audited) -> dict[str, int]:
        """Return the counts for a new line: 0 equal lines were left out, and how many of its kind the budget dropped
        since the last line of that kind.
        """
        dropped, self._told[kind] = self.dropped[kind] - self._told[kind], self.dropped[kind]
        return {"left_out": 0, **({"dropped": dropped} if dropped else {})}

    def metrics(self) -> Iterator[Metric]:
        dropped = CounterMetricFamily(
            "understudy_audit_lines_dropped", "Lines that the audit log left out for its budget", labels=("action",)
        )
        for kind in Audited:
            dropped.add_metric((kind,), self.dropped[kind])
        yield dropped


def peer_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def note(scope: Scope, **fields: object) -> None:
    """Add fields to the line of a request that is being answered."""
    notes = scope.get(NOTES)
    if notes is not None:
        notes.update(fields)
