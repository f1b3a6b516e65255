"""The file with the keys that gossip is signed with: one key per line, the one to sign with first.

The service looks at the file once a second, so keys are exchanged without a restart. At the start it refuses a file
that it cannot use; later it keeps the last good keys and logs the reason.
"""

from __future__ import annotations

import logging
from pathlib import Path

from understudy_shared.base.clock import Clock, SystemClock
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.files import WatchedFile
from understudy_shared.bus.message_auth import MessageAuth
from understudy_shared.bus.signing import MAX_KEYS, Keyring, key_id_of

log = logging.getLogger(__name__)

MIN_KEY_CHARS, MAX_KEY_CHARS = 32, 512
"""Limits on a key: 32 random hexadecimal digits are 128 bits; `openssl rand -hex 32` makes 64."""

LOOK_EVERY_MS = 1000

MAX_FILE_BYTES = 8192
_MAKE_ONE = "Make one with: openssl rand -hex 32"
_READABLE_BY_OTHERS = 0o004


class KeyFile:
    """The keys in a file. It must be on a disk that answers: reading it blocks the loop that judges messages."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Read the file. Raises SettingsError for a file that cannot be used."""
        self._clock = clock
        self._looked_ms = clock.monotonic_ms()
        self._file = WatchedFile(path, lambda data: Keyring(parse_keys(data)), max_bytes=MAX_FILE_BYTES, clock=clock)
        if path.stat().st_mode & _READABLE_BY_OTHERS:
            log.warning("every user of this machine may read %s", path, extra={"action": "key-file-open"})

    def current(self) -> Keyring:
        """Return the keys in the file, or the last ones that could be used."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms >= LOOK_EVERY_MS:
            self._looked_ms = now_ms
            if self._file.look():
                _say_signed(self._file.value)
        return self._file.value


def message_auth(
    application_id: str, key_file: Path | None, *, accept_unsigned: bool, sender: str, clock: Clock | None = None
) -> MessageAuth:
    """Make the signatures of one process by its settings. Raises SettingsError for a file that cannot be used."""
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
    """Parse the keys in the content of a file (pure): one per line; empty lines, and those with a `#` first, are left
    out.

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
