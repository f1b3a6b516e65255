"""The credential that a request carries: a key, or a token (JWT, RFC 7519), not yet checked (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from understudy_shared.auth.api_keys import KEY, Presented, digest_of

MAX_TOKEN_BYTES = 8192
"""Limit on a token: half of the limit of all headers. Tokens with a user's hundred groups have 4 KiB."""

_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9_.-]+)")
_KEY = re.compile(KEY.pattern.encode())
_TOKEN = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class PresentedToken(Presented):
    """A token as a request carries it. `bad` is the reason why it does not count for this request."""

    __slots__ = ("bad", "token")

    def __init__(self, token: bytes) -> None:
        digest = digest_of(token)
        super().__init__(f"token {digest.hex()}", digest)
        self.token = token
        self.bad: BadTokenError | None = None


class BadTokenError(Exception):
    """The reason why a token is not good: for the log and the metric. The client learns less."""

    def __init__(self, reason: str, *, is_expired: bool = False, lacks_key_of: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_expired = is_expired
        self.lacks_key_of = lacks_key_of
        """The issuer whose key set lacks the key: its newest set may have it."""


def presented_in(headers: Iterable[tuple[bytes, bytes]]) -> Presented | None:
    """Return the credential of a request, None without one. Names of headers are in lower case.

    A credential of unknown form, or one that is there twice, is refused like a wrong key.
    """
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        return None
    bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if bearer is None:
        return Presented("", b"")
    shown = bearer[1]
    if found := _KEY.fullmatch(shown):
        return Presented(found[1].decode(), digest_of(shown))
    if len(shown) <= MAX_TOKEN_BYTES and _TOKEN.fullmatch(shown):
        return PresentedToken(shown)
    return Presented("", b"")
