"""The key sets of issuers while a service runs: read from files, or fetched over HTTP, and cached. Needs the extra
`jwt`.

Only a request with a token of an unknown signing key waits for an issuer, and not for long. An issuer that does not
answer changes nothing for a day: the known keys stay in use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request

from understudy_shared.auth.api_keys import ApiKey
from understudy_shared.auth.binding import is_loopback
from understudy_shared.auth.issuers import Issuer
from understudy_shared.auth.key_sets import MAX_SET_BYTES, KeySetAge, PublicKey, parse_key_set
from understudy_shared.auth.presented import BadTokenError, PresentedToken
from understudy_shared.auth.tokens import check_token, issuer_of
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.reminders import Reminder
from understudy_shared.http.opener import url_opener

log = logging.getLogger(__name__)

_HEADERS = {"accept": "application/json", "user-agent": "understudy"}

FETCH_LIMIT_S = 5.0
"""Seconds for the answer of an issuer to begin, to go on, and to end."""


class FetchError(UnderstudyError):
    """A key set could not be fetched."""


class IssuerKeys:
    """The keys of one issuer."""

    def __init__(self, issuer: Issuer, changed: Callable[[], None], now_s: Callable[[], float]) -> None:
        """Take an issuer. `changed` is called when there are other keys than before."""
        self.issuer = issuer
        self.keys: Mapping[str, PublicKey] = {}
        self.failed: str | None = None
        """The reason why the last fetch failed; None when it succeeded."""
        self._changed = changed
        self._now_s = now_s
        self._age = KeySetAge()
        self._reminder = Reminder()
        self._asking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"IssuerKeys({self.issuer.name}, {len(self.keys)} keys)"

    def look(self) -> None:
        """Fetch the keys if it is time, and forget those that are too old. On the loop, now and then."""
        now_s = self._now_s()
        if self._age.is_due(now_s):
            self._ask(now_s)
        if self.keys and self._age.is_too_old(now_s):
            self._use({})

    def asked_for(self) -> asyncio.Task[None] | None:
        """Fetch because a token needs an unknown key. Return the task to wait for; None when it is too early."""
        now_s = self._now_s()
        if self._asking is None and self._age.may_ask(now_s):
            self._ask(now_s)
        return self._asking

    def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    def _ask(self, now_s: float) -> None:
        if self._asking is not None:
            return
        self._age.asked(now_s)
        task = asyncio.get_running_loop().create_task(self._read(), name=f"read the keys of {self.issuer.name}")
        self._asking = task

    async def _read(self) -> None:
        try:
            found = await asyncio.to_thread(_key_set_at, self.issuer.key_source)
        except Exception as error:  # libraries raise errors of many kinds for hosts and certificates
            said = str(error) if isinstance(error, UnderstudyError) else repr(error)
            self.failed = f"the keys of issuer {self.issuer.name} cannot be read: {said}"
            if self._reminder.is_due(self._now_s() * 1000):
                log.warning("%s", self.failed, extra={"action": "issuer-keys-failed", "issuer": self.issuer.name})
        else:
            self.failed = None
            self._reminder.reset()
            self._age.read(self._now_s())
            self._use(found)
        finally:
            self._asking = None

    def _use(self, keys: Mapping[str, PublicKey]) -> None:
        if _said_of(keys) == _said_of(self.keys):
            return
        names = sorted(keys)[:20]
        extra = {"action": "audit-config", "issuer": self.issuer.name, "keys": ",".join(names), "outcome": "used"}
        log.warning("issuer %s has %d keys now", self.issuer.name, len(keys), extra=extra)
        self.keys = keys
        self._changed()


class TrustedIssuers:
    """The issuers whose tokens are good here, with their keys."""

    def __init__(self, changed: Callable[[], None], now_s: Callable[[], float]) -> None:
        """Start without issuers. `changed` is called when an issuer has other keys than before."""
        self._changed = changed
        self._now_s = now_s
        self._by_issuer: dict[str, IssuerKeys] = {}

    def __repr__(self) -> str:
        return f"TrustedIssuers({', '.join(map(repr, self._by_issuer.values()))})"

    @property
    def failed(self) -> list[str]:
        """The failures of issuers, if any."""
        return [each.failed for each in self._by_issuer.values() if each.failed is not None]

    def trust(self, issuers: Mapping[str, Issuer]) -> None:
        """Trust these from now on. An issuer with the same key source keeps its known keys."""
        before, self._by_issuer = self._by_issuer, {}
        for stated, issuer in issuers.items():
            known = before.get(stated)
            if known is not None and known.issuer.key_source == issuer.key_source:
                known.issuer = issuer
                self._by_issuer[stated] = known
            else:
                self._by_issuer[stated] = IssuerKeys(issuer, self._changed, self._now_s)
        for each in before.values():
            if each not in self._by_issuer.values():
                each.stop()

    def checked(self, presented: PresentedToken, now_s: float) -> ApiKey:
        """Check a token, and return its grants. Raises BadTokenError."""
        issuer = issuer_of(presented.token, self._issuers)
        return check_token(presented, issuer, self._by_issuer[issuer.issuer].keys, now_s)

    def asked_for(self, why: BadTokenError) -> asyncio.Task[None] | None:
        """Return the fetch of a token's key from its issuer; None when the token is bad for another reason, or the
        issuer was asked just now.
        """
        keys = self._by_issuer.get(why.lacks_key_of)
        return None if keys is None else keys.asked_for()

    def look(self) -> None:
        for each in self._by_issuer.values():
            each.look()

    def stop(self) -> None:
        for each in self._by_issuer.values():
            each.stop()

    @property
    def _issuers(self) -> dict[str, Issuer]:
        return {stated: each.issuer for stated, each in self._by_issuer.items()}


def _said_of(keys: Mapping[str, PublicKey]) -> dict[str, tuple[bytes, frozenset[str]]]:
    """Return a set's raw content for comparison: parsing makes new objects each time."""
    return {kid: (key.said, key.algorithms) for kid, key in keys.items()}


def _key_set_at(source: str) -> dict[str, PublicKey]:
    """Read the keys at a URL or in a file. It blocks. Raises UnderstudyError, and the errors of HTTP libraries."""
    if "://" in source:
        return parse_key_set(_fetched(source))
    with Path(source).open("rb") as file:
        data = file.read(MAX_SET_BYTES + 1)
    _refuse_long(len(data), source)
    return parse_key_set(data)


def _fetched(url: str) -> bytes:
    """Fetch the answer of a URL, in one piece, uncompressed, without redirects."""
    limit_s = time.monotonic() + FETCH_LIMIT_S
    parts: list[bytes] = []
    request = Request(url, headers=_HEADERS)  # noqa: S310  # credentials name http or https only
    opener = url_opener(None, uses_proxies=not is_loopback(urlsplit(url).hostname or ""))
    with opener.open(request, timeout=FETCH_LIMIT_S) as answer:
        if answer.status != 200 or "content-encoding" in answer.headers:
            raise FetchError(f"it answers with {answer.status}, not with a key set", where=url)
        while part := answer.read1(8192):
            parts.append(part)
            _refuse_long(sum(map(len, parts)), url)
            if time.monotonic() > limit_s:
                raise FetchError(f"it takes more than {FETCH_LIMIT_S:.0f} s", where=url)
        if answer.length:  # `read1` does not notice that an answer is cut off
            raise FetchError(f"its answer ends {answer.length} bytes too early", where=url)
    return b"".join(parts)


def _refuse_long(size_bytes: int, where: str) -> None:
    if size_bytes > MAX_SET_BYTES:
        raise FetchError(f"the key set has more than {MAX_SET_BYTES} bytes", where=where)
