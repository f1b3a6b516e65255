"""Signatures of messages between processes: HMAC-SHA-256 under a key that the processes of a cluster share (pure).

A signed document goes with a line: `signed1 key mac sender life number`. The MAC is of the other parts of that line,
the application, the kind of the document, and the hash of its bytes as they are sent. Each part is one line of text
without a line end in it, so no two messages are signed by the same bytes, and JSON needs no canonical form. A MAC for
one application or kind is not valid for another.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from understudy_shared.base.errors import UnderstudyError

MARK = b"signed1 "
MAX_LINE_BYTES = 4096
"""Limit on a signature's line: an encoded sender takes at most 3,072 bytes; the other parts have fixed lengths."""

MAX_KEYS = 2
"""Limit on the keys: one to sign with, and one that is being replaced."""

MAX_NAMES = 4096
"""Number of names whose quoted form is cached: senders, and the application."""

_DOMAIN = b"understudy-signature-1"
_LINE = re.compile(
    rb"signed1 (?P<key>[0-9a-f]{16}) (?P<mac>[0-9a-f]{64}) (?P<sender>[A-Za-z0-9%._~-]{1,3072}) "
    rb"(?P<life>[0-9a-f]{32}) (?P<number>0|[1-9][0-9]{0,15})"
)


class MalformedSignatureError(UnderstudyError):
    """A line begins as a signature does, but is malformed."""


class Stamp(NamedTuple):
    """The stamp of a message: its sender, the life of that process, and the message's number in it."""

    sender: str
    life: str
    number: int

    def line(self) -> bytes:
        return f"{_quoted(self.sender)} {self.life} {self.number}".encode()


class Signature(NamedTuple):
    """The parts of a signature's line."""

    key_id: bytes
    mac: bytes
    stamp: Stamp
    stamped: bytes
    """The stamp as it was sent: there is one way to write it."""


class SignedContent(NamedTuple):
    """The signed content beside the stamp: the application, and the document as it is sent."""

    application_id: str
    kind: bytes
    document: bytes


class Keyring:
    """The keys of a cluster: the first one signs, all of them are accepted."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        assert 1 <= len(secrets) <= MAX_KEYS, "a key file is checked when it is read"
        self._secrets = {key_id_of(secret): secret for secret in secrets}
        self._signing_id = key_id_of(secrets[0])

    def __repr__(self) -> str:
        return f"Keyring({', '.join(key_id.decode() for key_id in self._secrets)})"

    @property
    def key_ids(self) -> list[str]:
        """The names of the keys, which reveal nothing of them; the one that signs first."""
        return [key_id.decode() for key_id in self._secrets]

    def current(self) -> Keyring:
        """Return itself: these keys do not change."""
        return self

    def knows(self, key_id: bytes) -> bool:
        return key_id in self._secrets

    def sign(self, stamp: Stamp, content: SignedContent) -> bytes:
        """Return the signature's line, without a line end."""
        stamped = stamp.line()
        mac = self._mac(self._signing_id, stamped, content)
        return b"%b%b %b %b" % (MARK, self._signing_id, mac, stamped)

    def is_valid(self, signature: Signature, content: SignedContent) -> bool:
        """Whether a known key has signed exactly this."""
        if not self.knows(signature.key_id):
            return False
        mac = self._mac(signature.key_id, signature.stamped, content)
        return hmac.compare_digest(mac, signature.mac)

    def _mac(self, key_id: bytes, stamped: bytes, content: SignedContent) -> bytes:
        application = _quoted(content.application_id).encode()
        digest = (
            hashlib.sha256(content.document).hexdigest().encode()
        )  # hashes a large document without the interpreter's lock
        signed = b"\n".join((_DOMAIN, key_id, application, stamped, content.kind, digest))
        return hmac.digest(self._secrets[key_id], signed, "sha256").hex().encode()


def key_id_of(secret: bytes) -> bytes:
    """Return a key's public name."""
    return hmac.digest(secret, b"understudy-key-id-1", "sha256").hex()[:16].encode()


def split(payload: bytes) -> tuple[Signature | None, bytes]:
    """Split a payload into signature (None if unsigned) and document. Raises MalformedSignatureError."""
    if not payload.startswith(MARK):
        return None, payload
    end = payload.find(b"\n", 0, MAX_LINE_BYTES)
    if end < 0:
        raise MalformedSignatureError("the signature has no line end")
    return parse_line(payload[:end]), payload[end + 1 :]


def parse_line(line: bytes) -> Signature:
    """Parse a signature's line. Raises MalformedSignatureError."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise MalformedSignatureError(f"the signature does not parse: {line[:80]!r}")
    key_id, mac, sender, life, number = found.groups()
    stamp = Stamp(_sender_of(sender), life.decode(), int(number))
    return Signature(key_id, mac, stamp, line[found.start("sender") :])


@lru_cache(maxsize=MAX_NAMES)
def _quoted(text: str) -> str:
    return quote(text, safe="")


@lru_cache(maxsize=MAX_NAMES)
def _sender_of(quoted: bytes) -> str:
    """Unquote the sender. Raises MalformedSignatureError for a name that is not quoted as `stamp` quotes it."""
    sender = unquote(quoted.decode(), errors="replace")
    if quote(sender, safe="").encode() != quoted:
        raise MalformedSignatureError("the signature's sender is not quoted in the canonical form")
    return sender
