"""Signs the messages that this process sends and remembers, and judges those that it hears, reads and remembered.
One object per process.

Without a key nothing is signed, and signatures of others are ignored: processes get their key one by one. With a key
every unsigned, forged or replayed message is refused, unless unsigned documents are accepted for a while.

Each process numbers its messages, and sends those of one kind one after another. So a message whose number is not above
the last one of its kind that was heard of that life of the process is a repetition. What a process has not heard itself
may be repeated to it: Redis is trusted to hand on what is new (docs/threat-model.md).
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
from understudy_shared.base.throttles import Reminder
from understudy_shared.base.words import GOSSIP_KEY_MISSING, LEASE_HELD_BY_UNSIGNED, UNSIGNED_ACCEPTED
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

KEPT_MS = 60_000
"""Time for which the service reports that a process without the key held the lease."""

SIGNED_HEARD_MS = 10_000
"""Time after the last signed heartbeat for which a process without a key leaves the lease to those that have one."""

LARGE_BYTES = 256 * 1024
"""Size above which a document is hashed in a thread: it takes a millisecond or more."""

MAX_HEARD = 65_536
"""Limit on the last numbers that are kept: several times those of the nodes that may be known."""

_LEASE = b"lease"
_OWNER = Stamp("owner", "0" * 32, 0)
"""The stamp of every owner's signature: an owner names its process and its life, and a lease ends by itself."""


class UnauthenticError(UnderstudyError):
    """A document is not shown to come from this cluster. `source` is its alleged sender."""

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
        self._life = secrets.token_hex(16)
        self._numbers = itertools.count(1)
        self._clock: Clock = clock or SystemClock()
        self._heard: dict[tuple[str, str, bytes], int] = {}
        """The number of the last message by its sender's life, application and kind. The latest ones are last."""
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
        """Open a payload, whatever its number, and return its document. Raises UnauthenticError."""
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
        """Whether a document in a key may be used: False when a newer one of its sender was heard meanwhile."""
        stamp = found.stamp
        if stamp is None:
            return True
        if stamp.number < self._last(stamp, found.kind):
            return False
        self._note(stamp, found.kind, stamp.number - 1)  # it may be heard as well
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
