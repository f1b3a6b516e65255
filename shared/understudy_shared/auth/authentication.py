"""Known credentials: keys and secrets from files, sessions that keys began, and tokens of issuers.

A thread polls the files, and tasks ask issuers. Their results apply from the next request on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from understudy_shared.auth.audit import AuditLog
from understudy_shared.auth.cluster_secret import ClusterIdentity
from understudy_shared.auth.credentials import Credentials, StoredLimits
from understudy_shared.auth.presented import ApiKey, BadTokenError, Presented, PresentedToken, Session
from understudy_shared.auth.principals import Principal
from understudy_shared.auth.rates import RateLimiter
from understudy_shared.base.files import WatchedFile

if TYPE_CHECKING:
    from understudy_shared.auth.issuer_keys import TrustedIssuers

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""Interval of polling the files: a revoked key is refused within two seconds."""

CREDENTIALS, ISSUERS = "credentials", "issuers"
"""The causes of degradation: a file of credentials cannot be used, or an issuer does not return its keys."""

MAX_TOKENS = 10_000
"""Number of cached tokens, 2 KiB each. Other tokens are checked again at each request."""


class Refused(StrEnum):
    """The reasons why requests are refused. They are labels of the metric."""

    NO_CREDENTIAL = "no-credential"
    UNKNOWN_CREDENTIAL = "unknown-credential"
    EXPIRED_CREDENTIAL = "expired-credential"
    NOT_GRANTED = "not-granted"
    RATE_LIMITED = "rate-limited"
    NO_PEER_CERTIFICATE = "no-peer-certificate"


class UnknownCredential(NamedTuple):
    """The reason why a credential does not count: for the metric, for its sender, and for the log."""

    refused: Refused
    told: str
    logged: str


class KnownCredentials:
    """The credentials that count now. `accepts_peers`: they include those of other services of the application."""

    def __init__(
        self,
        file: WatchedFile[Credentials] | None,
        identity: ClusterIdentity,
        *,
        accepts_peers: bool,
        audit: AuditLog,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._identity = identity
        self._accepts_peers = accepts_peers
        self._audit = audit
        self._now_s = now_s
        self.keys = self._in_files()
        """Keys by id, and tokens that were verified."""
        self._tokens: dict[str, None] = {}
        """The ids in `keys` that belong to tokens, the oldest first."""
        self._issuers: TrustedIssuers | None = None
        self._next: asyncio.TimerHandle | None = None
        self.rates: RateLimiter | None = None
        """The rate limits of principals; None while there are no limits."""
        self._trust_issuers()
        self._limit()

    def __repr__(self) -> str:
        return f"KnownCredentials({len(self.keys)})"

    def principal(self, presented: Presented) -> Principal | None:
        """Return the principal of a key or token; None if it is unknown, revoked, expired, or not checked yet."""
        key = self.keys.get(presented.key_id)
        if key is None or not (presented.proven is key or presented.proves(key)) or key.expires_s <= self._now_s():
            return None
        return key.principal

    def known(self, presented: Presented | None) -> Principal | None:
        """Return the principal of a key, a session or a token; None when the credential does not count."""
        if presented is None:
            return None
        if isinstance(presented, Session):
            key = self.keys.get(presented.key_id)
            is_of = key is not None and presented.is_of(key, self._identity.session_keys, self._now_s())
            return key.principal if key is not None and is_of else None
        found = self.principal(presented)
        if found is None and isinstance(presented, PresentedToken) and self._checks(presented):
            return self.principal(presented)
        return found

    def _checks(self, token: PresentedToken) -> bool:
        """Check an unknown token. If it is good, cache it and return True; else set its `bad` to the reason."""
        if token.bad is None and self._issuers is not None:
            try:
                self._keep(self._issuers.checked(token, self._now_s()))
                return True
            except BadTokenError as error:
                token.bad = error
        return False

    def key_of(self, presented: Presented) -> ApiKey | None:
        """Return the key of that id, whether or not the credential proves it."""
        return self.keys.get(presented.key_id)

    def awaited(self, presented: Presented | None) -> asyncio.Task[None] | None:
        """Return the running request to a token's issuer whose answer may still make it count; None without one."""
        if self._issuers is None or not isinstance(presented, PresentedToken) or self.known(presented) is not None:
            return None
        awaited = None if presented.bad is None else self._issuers.asked_for(presented.bad)
        if awaited is not None:
            presented.bad = None
        return awaited

    def why_unknown(self, presented: Presented | None) -> UnknownCredential:
        """Return why a credential, or its absence, does not count."""
        if presented is None:
            return _said(Refused.NO_CREDENTIAL, "the request has no credential")
        if isinstance(presented, Session):
            return _said(Refused.EXPIRED_CREDENTIAL, "the session has ended")
        if isinstance(presented, PresentedToken):
            why = presented.bad
            if why is not None and why.is_expired:
                return UnknownCredential(Refused.EXPIRED_CREDENTIAL, "the token has expired", why.reason)
            logged = "token, and no issuer is known" if why is None else why.reason
            return UnknownCredential(Refused.UNKNOWN_CREDENTIAL, _NOT_OURS, logged)
        key = self.keys.get(presented.key_id)
        if key is not None and presented.proves(key):
            return _said(Refused.EXPIRED_CREDENTIAL, "the key has expired")
        return _said(Refused.UNKNOWN_CREDENTIAL, _NOT_OURS)

    def _keep(self, token: ApiKey) -> None:
        if len(self._tokens) >= MAX_TOKENS and token.key_id not in self._tokens:
            oldest = next(iter(self._tokens))
            del self._tokens[oldest]
            self.keys.pop(oldest, None)
        self._tokens[token.key_id] = None
        self.keys[token.key_id] = token

    def _forget_tokens(self) -> None:
        """Forget the checked tokens, because an issuer has other keys or other grants."""
        for key_id in self._tokens:
            self.keys.pop(key_id, None)
        self._tokens.clear()

    # ---- the service's side

    def start(self) -> None:
        """Begin to poll the files, and to ask issuers, on the running loop."""
        if self._issuers is not None:
            self._issuers.look()
        if self._file is not None or self._identity.file is not None or self._identity.tls is not None:
            self._look_later()

    def stop(self) -> None:
        if self._issuers is not None:
            self._issuers.stop()
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def look(self) -> None:
        self._use_if(self._read())

    def causes(self) -> dict[str, str]:
        """Return why the service is degraded, by cause; empty while its files can be used and its issuers answer."""
        files = (self._file, self._identity.file)
        refused = [file.refused for file in files if file is not None and file.refused is not None]
        causes = {CREDENTIALS: f"credentials are as they were: {'; '.join(refused)}"} if refused else {}
        causes |= {} if self._identity.tls is None else self._identity.tls.causes()
        failed = [] if self._issuers is None else self._issuers.failed
        return {**causes, ISSUERS: "; ".join(failed)} if failed else causes

    def _look_later(self) -> None:
        self._next = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look_beside)

    def _look_beside(self) -> None:
        """Poll in a thread: a file system may hang, and a large file takes longer than a lookup may wait."""
        if self._issuers is not None:
            self._issuers.look()
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
        is_new = self._file is not None and self._file.look()
        return self._identity.look() or is_new

    def _use_if(self, is_new: bool) -> None:
        if not is_new:
            return
        self._forget_tokens()
        before, self.keys = self.keys, self._in_files()
        was, now = ({key_id: _stored(key) for key_id, key in keys.items()} for keys in (before, self.keys))
        added = sorted(key_id for key_id in now if was.get(key_id) != now[key_id])
        removed = sorted(key_id for key_id in was if was[key_id] != now.get(key_id))
        if added or removed:
            self._audit.keys_changed(added, removed)
        self._trust_issuers()
        self._limit()

    def _in_files(self) -> dict[str, ApiKey]:
        keys = {} if self._file is None else self._file.value.keys
        return {**keys, **self._identity.keys} if self._accepts_peers else dict(keys)

    def _limit(self) -> None:
        """Apply the limits of the file. If they have not changed, keep the counts."""
        limits = StoredLimits() if self._file is None else self._file.value.limits
        if self.rates is None or repr(self.rates.limits) != repr(limits):  # the order of patterns matters, too
            self.rates = RateLimiter(limits) if limits.is_on else None

    def _trust_issuers(self) -> None:
        issuers = {} if self._file is None else self._file.value.issuers
        if issuers and self._issuers is None:
            from understudy_shared.auth.issuer_keys import TrustedIssuers  # noqa: PLC0415  # it needs the extra jwt

            self._issuers = TrustedIssuers(self._forget_tokens, self._now_s)
        if self._issuers is not None:
            self._issuers.trust(issuers)


_NOT_OURS = "the credential is not one of this service"


def _said(refused: Refused, what: str) -> UnknownCredential:
    return UnknownCredential(refused, what, what)


def _stored(key: ApiKey) -> tuple[object, ...]:
    """Return comparable values of a key in a file, because parsing makes new objects each time."""
    return key.digest, key.expires_s, key.principal.name, key.principal.grants
