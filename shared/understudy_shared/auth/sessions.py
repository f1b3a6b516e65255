"""A browser's session instead of a key (pure): after signing in with a key, a cookie proves it for some hours.

The cookie is signed by a key that is derived from the cluster's secret, so every router of the application knows it and
no router stores it. It names a key: when that is revoked, or ends, its sessions end too.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence

from understudy_shared.auth.api_keys import ApiKey, Presented

COOKIE = "understudy_session"
LIFETIME_S = 12 * 3600
"""Life of a session, a day's work: a browser that is left open overnight is signed out."""

_COOKIE = re.compile(rb"(?:^|;) *%b=([^; ]*)" % COOKIE.encode())
_FORM = re.compile(rb"([0-9a-f]{16})\.([0-9]{1,12})\.([A-Za-z0-9_-]{43})")


class Session(Presented):
    """A session as a request carries it."""

    __slots__ = ("ends", "mac")

    def __init__(self, key_id: str, ends: int, mac: bytes) -> None:
        super().__init__(key_id, b"")
        self.ends = ends
        self.mac = mac

    def is_of(self, key: ApiKey, signing_keys: Sequence[bytes], now_s: float) -> bool:
        """Whether a holder of this key began it, and it has not ended."""
        known = [hmac.compare_digest(_mac(key, self.ends, each), self.mac) for each in signing_keys]
        is_ours = any(known) and key.key_id == self.key_id
        return is_ours and now_s < self.ends and not key.is_expired(now_s)


def new_session(key: ApiKey, signing_key: bytes, now_s: float) -> str:
    """Make the cookie's value of a session that begins now."""
    ends = int(min(now_s + LIFETIME_S, key.expires_s))
    return f"{key.key_id}.{ends}.{_mac(key, ends, signing_key).decode()}"


def session_in(headers: Iterable[tuple[bytes, bytes]]) -> Session | None:
    """Return the session of a request, None without one. A malformed one, or one of several, counts for no key."""
    values = [value for name, cookies in headers if name == b"cookie" for value in _COOKIE.findall(cookies)]
    if not values:
        return None
    found = _FORM.fullmatch(values[0]) if len(values) == 1 else None
    return Session("", 0, b"") if found is None else Session(found[1].decode(), int(found[2]), found[3])


def _mac(key: ApiKey, ends: int, signing_key: bytes) -> bytes:
    """Return the MAC. It holds for this very key: another one of the same id has another digest."""
    said = b"%b.%d.%b" % (key.key_id.encode(), ends, key.digest)
    return urlsafe_b64encode(hmac.digest(signing_key, said, "sha256")).rstrip(b"=")
