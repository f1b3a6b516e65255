"""Signs the messages that this process sends or stores, and verifies those that it hears, reads or has stored.

A signature is HMAC-SHA-256 under a key that the processes of a cluster share: the first key of a file signs, and all
keys of the file are accepted. A signed document has a line before it: `signed1 key mac sender life number`. The MAC
covers the other parts of that line, the application, the kind of the document, and the hash of its bytes as sent. Each
part is text without a line end, so no two messages have the same signed bytes, and JSON needs no canonical form. A MAC
for one application or kind is not valid for another.

Without a key nothing is signed, and signatures of others are ignored: processes get their key one by one. With a key
every unsigned, forged or replayed message is refused, unless unsigned documents are accepted for a while.

Each process numbers its messages, and sends those of one kind in order. So a message is a replay if its number is not
above the last one of that kind from the same start of its sender. A message that this process has not heard can be
replayed to it: Redis is trusted to deliver new messages (docs/threat-model.md).
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.files import WatchedFile
from understudy_shared.base.throttles import Reminder
from understudy_shared.base.words import GOSSIP_KEY_MISSING, LEASE_HELD_BY_UNSIGNED, UNSIGNED_ACCEPTED

log = logging.getLogger(__name__)

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
    """A line begins like a signature, but is malformed."""


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
    """The stamp as it was sent. There is only one way to write it."""


class SignedContent(NamedTuple):
    """The signed content besides the stamp: the application, and the document as it is sent."""

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
        """The names of the keys, which reveal nothing about them. The signing key comes first."""
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


MIN_KEY_CHARS, MAX_KEY_CHARS = 32, 512
"""Limits on a key: 32 random hexadecimal digits are 128 bits; `openssl rand -hex 32` makes 64."""

LOOK_EVERY_MS = 1000

MAX_FILE_BYTES = 8192
_MAKE_ONE = "Make one with: openssl rand -hex 32"
_READABLE_BY_OTHERS = 0o004


class KeyFile:
    """The keys in a file. It must be on a disk that answers quickly: reading it blocks the event loop."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Read the file. Raises SettingsError for a file that cannot be used."""
        self._clock = clock
        self._looked_ms = clock.monotonic_ms()
        self._file = WatchedFile(path, lambda data: Keyring(parse_keys(data)), max_bytes=MAX_FILE_BYTES, clock=clock)
        if path.stat().st_mode & _READABLE_BY_OTHERS:
            log.warning("every user of this machine may read %s", path, extra={"action": "key-file-open"})

    def current(self) -> Keyring:
        """Return the keys in the file; if they cannot be used, the last usable ones."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms >= LOOK_EVERY_MS:
            self._looked_ms = now_ms
            if self._file.look():
                _say_signed(self._file.value)
        return self._file.value


def message_auth(
    application_id: str, key_file: Path | None, *, accept_unsigned: bool, sender: str, clock: Clock | None = None
) -> MessageAuth:
    """Return the `MessageAuth` of a process with these settings. Raises SettingsError if the file cannot be used."""
    clock = clock or SystemClock()
    if key_file is None:
        if accept_unsigned:
            what = "gossip_accept_unsigned is set without a key: everything is unsigned and accepted"
            raise SettingsError(what, where="gossip_key_file", fix="Name the file with the key, or drop the setting")
        return MessageAuth(application_id, sender=sender, clock=clock)
    keys = KeyFile(key_file, clock)
    made = MessageAuth(application_id, keys, sender=sender, accepts_unsigned=accept_unsigned, clock=clock)
    _say_signed(keys.current())
    shouted = made.accepting_unsigned()
    if shouted is not None:
        log.warning("%s", shouted, extra={"action": "unsigned-accepted"})
    return made


def _say_signed(keys: Keyring) -> None:
    log.info("gossip is signed with key %s", keys.key_ids[0], extra={"action": "gossip-signed"})


def parse_keys(content: bytes) -> list[bytes]:
    """Parse the keys in the content of a file (pure): one per line. Empty lines, and lines that begin with `#`, are
    ignored.

    Raises SettingsError, which shows no part of a key.
    """
    lines = [line.strip() for line in content.splitlines()]
    keys = [line for line in lines if line and not line.startswith(b"#")]
    if not keys:
        raise SettingsError("there is no key in it", fix=_MAKE_ONE)
    if len(keys) > MAX_KEYS:
        what = f"{len(keys)} keys, above {MAX_KEYS}"
        raise SettingsError(what, fix="Keep the one that signs, and one that is being replaced")
    for number, key in enumerate(keys, 1):
        if not MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS or len(key.split()) > 1:
            what = f"key {number} has no {MIN_KEY_CHARS} to {MAX_KEY_CHARS} characters without blanks"
            raise SettingsError(what, fix=_MAKE_ONE)
    if len({key_id_of(key) for key in keys}) < len(keys):
        raise SettingsError("the same key is in it twice", fix="Write each key once")
    return keys


KEPT_MS = 60_000
"""Time for which the service reports that a process without the key held the lease."""

SIGNED_HEARD_MS = 10_000
"""Time after the last signed heartbeat during which a process without a key leaves the lease to processes with one."""

LARGE_BYTES = 256 * 1024
"""Size above which a document is hashed in a thread: it takes a millisecond or more."""

MAX_HEARD = 65_536
"""Limit on the message numbers that are remembered: several times as many as the nodes that may be known."""

_LEASE = b"lease"
_OWNER = Stamp("owner", "0" * 32, 0)
"""The stamp of every owner's signature. It needs no life and no number: an owner names its process and its life, and a
lease expires.
"""


class UnauthenticError(UnderstudyError):
    """A document is not proven to come from this cluster. `source` is its alleged sender."""

    def __init__(self, reason: str, what: str, *, source: str = "", fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.reason = reason
        self.source = source


class Authentic(NamedTuple):
    """A document of the bus. `stamp` is None if no signature was checked."""

    kind: bytes
    document: bytes
    stamp: Stamp | None


Refuse = Callable[[UnauthenticError, str], None]
"""A function that counts and logs a refusal. Its second argument is where the document was found."""


def _only_log(error: UnauthenticError, where: str) -> None:
    log.warning("left out %s (%s)", error, where, extra={"action": "bad-message", "kind": error.reason})


class MessageAuth:
    """The signatures of one process. `on_refused` counts and logs; the process' `Gossip` sets it."""

    def __init__(
        self,
        application_id: str,
        keys: Keyring | KeyFile | None = None,
        *,
        sender: str = "nobody",
        accepts_unsigned: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Take the keys; without them no message is signed or verified. `sender` names this process to people."""
        assert sender, "a signature names its sender"
        self.on_refused: Refuse = _only_log
        self.accepted_unsigned = 0
        """The number of unsigned documents that were accepted although there is a key."""
        self._application_id = application_id
        self._keys = keys
        self._accepts_unsigned = accepts_unsigned
        self._sender = sender
        self._life = secrets.token_hex(16)
        self._numbers = itertools.count(1)
        self._clock: Clock = clock or SystemClock()
        self._heard: dict[tuple[str, str, bytes], int] = {}
        """The number of the last message, by life of its sender, application and kind. The latest entry is last."""
        self._reminder = Reminder()
        self._signed: tuple[str, float] | None = None
        """The sender and the time of the last signed heartbeat, if this process has no key."""
        self._unsigned_lease: tuple[str, float] | None = None
        """The node that held the lease without a signature, and when that was last seen."""

    def within(self, application_id: str) -> MessageAuth:
        """Return a `MessageAuth` for another application, with the same keys and the same count of messages."""
        inner = copy(self)
        inner._application_id = application_id  # noqa: SLF001  # of the same class
        return inner

    @property
    def is_on(self) -> bool:
        """Whether there is a key."""
        return self._keys is not None

    def accepting_unsigned(self) -> str | None:
        """Return a warning if unsigned documents are accepted, else None."""
        if not self.is_on or not self._accepts_unsigned:
            return None
        return "unsigned gossip is accepted (gossip_accept_unsigned): end that when every process signs"

    def causes(self) -> dict[str, str]:
        """Return the causes by which signatures degrade this process, each with its text."""
        found = {
            UNSIGNED_ACCEPTED: self.accepting_unsigned(),
            GOSSIP_KEY_MISSING: self.missing_key(),
            LEASE_HELD_BY_UNSIGNED: self._lease_taken_over(),
        }
        return {cause: why for cause, why in found.items() if why is not None}

    def missing_key(self) -> str | None:
        """Report that others sign and this process has no key; None while it has one or hears no signed heartbeat."""
        if self.is_on or self._signed is None or self._clock.monotonic_ms() - self._signed[1] > SIGNED_HEARD_MS:
            return None
        return (
            f"{self._signed[0]} signs its heartbeats, and this process has no key: processes with the key ignore it. "
            "Give it the key (gossip_key_file)"
        )

    def _lease_taken_over(self) -> str | None:
        seen = self._unsigned_lease
        if seen is None or self._clock.monotonic_ms() - seen[1] > KEPT_MS:
            return None
        return f"{seen[0]} had the lease and no gossip key: it was taken over. Give that process the key, or end it"

    # ---- the lease

    def signed_owner(self, owner: str) -> str:
        """Return the owner of a lease, followed by a signature if there is a key."""
        if self._keys is None:
            return owner
        line = self._keys.current().sign(_OWNER, SignedContent(self._application_id, _LEASE, owner.encode()))
        return f"{owner} {line.decode()}"

    def is_signed_owner(self, holder: str) -> bool:
        """Whether the holder of a lease has a key of this cluster."""
        owner, _, line = holder.partition(f" {MARK.decode()}")
        try:
            signature = parse_line(MARK + line.encode())
        except MalformedSignatureError:
            return False
        content = SignedContent(self._application_id, _LEASE, owner.encode())
        return self._keys is not None and self._keys.current().is_valid(signature, content)

    def note_unsigned_lease(self, holder: str) -> None:
        """Note that a process without the key holds the lease."""
        shown = holder[:200]
        if self._lease_taken_over() is None:
            log.warning(
                "%s holds the lease unsigned: it is taken over", shown, extra={"action": LEASE_HELD_BY_UNSIGNED}
            )
        self._unsigned_lease = (shown, self._clock.monotonic_ms())

    # ---- documents

    def sealed(self, kind: bytes, document: bytes) -> bytes:
        """Return the bytes to send or to write: the signature's line if there is a key, the kind, and the document."""
        if self._keys is None:
            return b"%b\n%b" % (kind, document)
        stamp = Stamp(self._sender, self._life, next(self._numbers))
        line = self._keys.current().sign(stamp, SignedContent(self._application_id, kind, document))
        return b"%b\n%b\n%b" % (line, kind, document)

    def opened(self, payload: bytes) -> Authentic:
        """Verify a payload, without a check of its number, and return its document. Raises UnauthenticError."""
        try:
            signature, rest = split(payload)
        except MalformedSignatureError as error:
            raise UnauthenticError("forged", f"in a message {error.what}") from None
        kind, _, document = rest.partition(b"\n")
        return Authentic(kind, document, self._checked(signature, kind, document))

    def refuse_repeated(self, found: Authentic) -> None:
        """Refuse a heard message whose number is not above the last one. Raises UnauthenticError."""
        stamp = found.stamp
        if stamp is None:
            return
        if stamp.number <= self._last(stamp, found.kind):
            what = f"message {stamp.number} of {stamp.sender[:80]!r}, which was sent before or overtaken"
            raise UnauthenticError("replayed", what, source=stamp.sender)
        self._note(stamp, found.kind, stamp.number)

    def is_current(self, found: Authentic) -> bool:
        """Whether a document read from a key may be used. Not if a newer one of its sender was heard meanwhile."""
        stamp = found.stamp
        if stamp is None:
            return True
        if stamp.number < self._last(stamp, found.kind):
            return False
        self._note(stamp, found.kind, stamp.number - 1)  # so that the same message may still be heard
        return True

    def _last(self, stamp: Stamp, kind: bytes) -> int:
        return self._heard.get((stamp.life, self._application_id, kind), -1)

    def _note(self, stamp: Stamp, kind: bytes, number: int) -> None:
        place = (stamp.life, self._application_id, kind)
        self._heard[place] = max(number, self._heard.pop(place, -1))
        if len(self._heard) > MAX_HEARD:
            del self._heard[next(iter(self._heard))]

    def _checked(self, signature: Signature | None, kind: bytes, document: bytes) -> Stamp | None:
        if self._keys is None:
            if signature is not None and kind == b"heartbeat":
                self._hear_signed(signature.stamp.sender[:200])
            return None
        if signature is None:
            self._unsigned(kind)
            return None
        sender, keyring = signature.stamp.sender, self._keys.current()
        if not keyring.knows(signature.key_id):
            known = ", ".join(keyring.key_ids)
            what = f"a document in the name of {sender[:80]!r}, signed with key {signature.key_id.decode()}"
            raise UnauthenticError("forged", what, source=sender, fix=f"The key file here has {known}")
        if not keyring.is_valid(signature, SignedContent(self._application_id, kind, document)):
            what = f"a document in the name of {sender[:80]!r} whose signature is wrong"
            raise UnauthenticError("forged", what, source=sender)
        return signature.stamp

    def _hear_signed(self, sender: str) -> None:
        is_news = self.missing_key() is None
        self._signed = (sender, self._clock.monotonic_ms())
        if is_news:
            log.warning("%s", self.missing_key(), extra={"action": GOSSIP_KEY_MISSING})

    def _unsigned(self, kind: bytes) -> None:
        if not self._accepts_unsigned:
            fix = "Give every process the key, or accept unsigned ones for a while (gossip_accept_unsigned)"
            raise UnauthenticError("unsigned", f"an unsigned {kind[:40].decode(errors='replace')!r}", fix=fix)
        self.accepted_unsigned += 1
        if self._reminder.is_due(self._clock.monotonic_ms()):
            count = self.accepted_unsigned
            log.warning("%s; %d so far", self.accepting_unsigned(), count, extra={"action": "unsigned-accepted"})
