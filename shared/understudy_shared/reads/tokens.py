"""The form of the tokens that readers send back: a prefix, and URL-safe base64 of a JSON array (pure)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

from understudy_shared.base.errors import UnderstudyError


class Token(Protocol):
    """The content of a token."""

    def encode(self) -> str:
        """Return the token."""


T = TypeVar("T", bound=Token)


def encode_token(prefix: str, fields: Sequence[object], *, has_checksum: bool = False) -> str:
    """Return the token of these fields. A checksum, for accidents, is the last field."""
    checksum = [blake2b(json.dumps(fields).encode(), digest_size=6).hexdigest()] if has_checksum else []
    text = json.dumps([*fields, *checksum], separators=(",", ":"), ensure_ascii=False)
    return prefix + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def fields_of(body: str) -> object:
    """Return the JSON in a token behind its prefix. Raises ValueError and RecursionError."""
    return json.loads(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))


def decode_token(
    token: object,
    prefix: str,
    max_chars: int,
    parse: Callable[[object], T | None],
    bad: Callable[[str], UnderstudyError],
) -> T:
    """Decode a token. `parse` returns None for fields that were never issued; `bad` makes the error, of its reason."""
    if not isinstance(token, str) or not token.startswith(prefix) or len(token) > max_chars:
        raise bad(f"it does not begin with {prefix!r}, or is longer than {max_chars} characters")
    try:
        found = parse(fields_of(token[len(prefix) :]))
        is_exact = found is not None and found.encode() == token
    except (ValueError, RecursionError) as error:  # bad base64, UTF-8 or JSON are all ValueErrors
        raise bad(f"its body does not decode ({error})") from None
    if found is None or not is_exact:
        raise bad("its fields are not as they were issued")
    return found
