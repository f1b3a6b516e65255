"""Signs the messages that this process sends, and judges those that it hears, reads, receives as answers and remembers.
One object per process.

Without a key nothing is signed, and signatures of others are ignored: processes get their key one by one. With a key
every unsigned, forged, replayed or outdated message is refused, unless unsigned documents are accepted for a while.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable
from copy import copy
from typing import NamedTuple, Protocol

from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.reminders import Reminder
from understudy_shared.base.words import GOSSIP_KEY_MISSING, LEASE_HELD_BY_UNSIGNED, UNSIGNED_ACCEPTED
from understudy_shared.bus.replay import WINDOW_MS, ReplayGuard, Timeliness
from understudy_shared.bus.signing import (
    MARK,
    Keyring,
    MalformedSignatureError,
    Signature,
    SignedContent,
    Stamp,
    parse_line,
    split,
)

log = logging.getLogger(__name__)

NONCE_HEADER = "understudy-nonce"
SIGNATURE_HEADER = "understudy-signature"
"""Header of a signed answer. The signature is for the nonce of the caller alone: it needs no clock."""

NONCE_CHARS = 32
KEPT_MS = 60_000
"""Time for which the service reports that a process without the key held the lease."""

SIGNED_HEARD_MS = 10_000
"""Time after the last signed heartbeat for which a process without a key leaves the lease to those that have one."""

LARGE_BYTES = 256 * 1024
"""Size above which a document is hashed in a thread: it takes a millisecond or more."""

_BUS, _REMEMBERED, _ANSWER, _LEASE = b"bus", b"remembered", b"answer ", b"lease"
_OWNER = Stamp("owner", "0" * 32, 0, 0)
"""The stamp of every owner's signature: an owner names its process and its life, and a lease ends by itself."""

_HEX = frozenset("0123456789abcdef")


class UnauthenticError(UnderstudyError):
    """A document is not shown to come from this cluster now. `source` is its alleged sender."""

    def __init__(self, reason: str, what: str, *, source: str = "", fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.reason = reason
        self.source = source


class Authentic(NamedTuple):
    """A document of the bus. `stamp` is None where no signature was checked."""

    kind: bytes
    document: bytes
    stamp: Stamp | None


class KeySource(Protocol):
    """The current keys: a `Keyring`, or a file that is read again when it changes."""

    def current(self) -> Keyring: ...


Refuse = Callable[[UnauthenticError, str], None]
"""A function that counts and logs a refusal, and where the document was found."""


def _only_log(error: UnauthenticError, where: str) -> None:
    log.warning("left out %s (%s)", error, where, extra={"action": "bad-message", "kind": error.reason})


class MessageAuth:
    """The signatures of one process. `on_refused` counts and logs; the process' `Gossip` sets it."""

    def __init__(
        self,
        application_id: str,
        keys: KeySource | None = None,
        *,
        sender: str = "nobody",
        accepts_unsigned: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Take the keys; without them nothing is signed and nothing checked. `sender` names this process to people."""
        assert sender, "a signature names its sender"
        self.on_refused: Refuse = _only_log
        self.accepted_unsigned = 0
        """The number of unsigned documents that were used although there is a key."""
        self._application_id = application_id
        self._keys = keys
        self._accepts_unsigned = accepts_unsigned
        self._sender = sender
        self._session = secrets.token_hex(16)
        self._numbers = itertools.count(1)
        self._clock: Clock = clock or SystemClock()
        self._guard = ReplayGuard()
        self._reminder = Reminder()
        self._signed: tuple[str, float] | None = None
        """The sender of the last signed heartbeat, and when it came, where this process has no key."""
        self._unsigned_lease: tuple[str, float] | None = None
        """The node that held the lease unsigned, and when that was seen last."""

    def within(self, application_id: str) -> MessageAuth:
        """Return the same signatures for another application: the same keys, and one count of messages."""
        inner = copy(self)
        inner._application_id = application_id  # noqa: SLF001  # of the same class
        return inner

    @property
    def is_on(self) -> bool:
        """Whether there is a key."""
        return self._keys is not None

    def accepting_unsigned(self) -> str | None:
        """Return a warning for people that unsigned documents are accepted; None while they are not."""
        if not self.is_on or not self._accepts_unsigned:
            return None
        return "unsigned gossip is accepted (gossip_accept_unsigned): end that when every process signs"

    def causes(self) -> dict[str, str]:
        """List why signatures degrade this process, by cause."""
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
            f"{self._signed[0]} signs its heartbeats, and this process has no key: who has one ignores what it says. "
            "Give it the key (gossip_key_file)"
        )

    def _lease_taken_over(self) -> str | None:
        seen = self._unsigned_lease
        if seen is None or self._clock.monotonic_ms() - seen[1] > KEPT_MS:
            return None
        return f"{seen[0]} had the lease and no gossip key: it was taken over. Give that process the key, or end it"

    # ---- the lease

    def signed_owner(self, owner: str) -> str:
        """Return the owner of a lease, with a signature behind it if there is a key."""
        if self._keys is None:
            return owner
        line = self._keys.current().sign(_OWNER, SignedContent(_LEASE, self._application_id, _LEASE, owner.encode()))
        return f"{owner} {line.decode()}"

    def is_signed_owner(self, holder: str) -> bool:
        """Whether the holder of a lease has a key of this cluster."""
        owner, _, line = holder.partition(f" {MARK.decode()}")
        try:
            signature = parse_line(MARK + line.encode())
        except MalformedSignatureError:
            return False
        content = SignedContent(_LEASE, self._application_id, _LEASE, owner.encode())
        return self._keys is not None and self._keys.current().is_valid(signature, content)

    def note_unsigned_lease(self, holder: str) -> None:
        """Note that a process without the key holds the lease."""
        shown = holder[:200]
        if self._lease_taken_over() is None:
            log.warning(
                "%s holds the lease unsigned: it is taken over", shown, extra={"action": LEASE_HELD_BY_UNSIGNED}
            )
        self._unsigned_lease = (shown, self._clock.monotonic_ms())

    # ---- the bus

    def sealed(self, kind: bytes, document: bytes) -> bytes:
        """Return the bytes to send or to write: the signature's line if there is a key, the kind, and the document."""
        line = self._sign(_BUS, kind, document)
        return b"%b\n%b" % (kind, document) if line is None else b"%b\n%b\n%b" % (line, kind, document)

    def opened(self, payload: bytes) -> Authentic:
        """Open a payload of the bus, whatever its age, and return its document. Raises UnauthenticError."""
        try:
            signature, rest = split(payload)
        except MalformedSignatureError as error:
            raise UnauthenticError("forged", f"in a message {error.what}") from None
        kind, _, document = rest.partition(b"\n")
        return Authentic(kind, document, self._checked(signature, _BUS, kind, document))

    def refuse_stale(self, found: Authentic) -> None:
        """Refuse a heard message that is a repetition, or is too old or too new. Raises UnauthenticError."""
        if found.stamp is not None:
            self._judge(found.stamp, self._guard.heard(found.stamp, now_ms=self._now_ms()))

    def is_current(self, found: Authentic, *, kept_ms: int) -> bool:
        """Whether a document in a key, which stores it for `kept_ms`, may be used: False when a newer one was heard
        meanwhile. Raises UnauthenticError when an old document was put back.
        """
        if found.stamp is None:
            return True
        freshness = self._guard.read(found.stamp, now_ms=self._now_ms(), kept_ms=kept_ms)
        self._judge(found.stamp, freshness)
        return freshness is Timeliness.FRESH

    # ---- answers over HTTP, and files

    def new_nonce(self) -> str | None:
        """Make a nonce to send with a question; None without a key."""
        return secrets.token_hex(NONCE_CHARS // 2) if self.is_on else None

    def answer_line(self, nonce: str | None, kind: bytes, document: bytes) -> str | None:
        """Sign the answer to a question with this nonce; None without a key, or for a malformed nonce."""
        if nonce is None or len(nonce) != NONCE_CHARS or not _HEX.issuperset(nonce):
            return None
        line = self._sign(_ANSWER + nonce.encode(), kind, document)
        return None if line is None else line.decode()

    def check_answer(self, line: str | None, nonce: str | None, kind: bytes, document: bytes) -> None:
        """Refuse an answer that is not signed for this nonce. Raises UnauthenticError."""
        if self.is_on:
            self._checked(_parsed(line), _ANSWER + (nonce or "").encode(), kind, document)

    def remembered_line(self, kind: bytes, document: bytes) -> bytes | None:
        """Sign a document in a file; None without a key."""
        return self._sign(_REMEMBERED, kind, document)

    def check_remembered(self, line: str | None, kind: bytes, document: bytes) -> None:
        """Refuse a remembered document that no process with a key has signed for a file. Raises UnauthenticError."""
        if self.is_on:
            self._checked(_parsed(line), _REMEMBERED, kind, document)

    def _sign(self, purpose: bytes, kind: bytes, document: bytes) -> bytes | None:
        if self._keys is None:
            return None
        number = (
            next(self._numbers) if purpose is _BUS else 0
        )  # A number per answer would leave gaps in the numbers that hearers of the bus count.
        stamp = Stamp(self._sender, self._session, number, self._now_ms())
        return self._keys.current().sign(stamp, SignedContent(purpose, self._application_id, kind, document))

    def _checked(self, signature: Signature | None, purpose: bytes, kind: bytes, document: bytes) -> Stamp | None:
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
        if not keyring.is_valid(signature, SignedContent(purpose, self._application_id, kind, document)):
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

    def _judge(self, stamp: Stamp, freshness: Timeliness) -> None:
        if freshness is Timeliness.REPLAYED:
            what = f"message {stamp.number} of {stamp.sender[:80]!r}, which was sent before"
            raise UnauthenticError("replayed", what, source=stamp.sender)
        if freshness is Timeliness.OUTDATED:
            away_s = (stamp.sent_ms - self._now_ms()) / 1000
            what = f"a message of {stamp.sender[:80]!r} whose time is {away_s:+.0f} s from the clock here"
            fix = f"It was sent before, or a clock is wrong: they may differ by {WINDOW_MS // 1000} s"
            raise UnauthenticError("outdated", what, source=stamp.sender, fix=fix)

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000


def _parsed(line: str | None) -> Signature | None:
    if line is None:
        return None
    try:
        return parse_line(line.encode("latin-1", "replace"))
    except MalformedSignatureError as error:
        raise UnauthenticError("forged", error.what) from None
