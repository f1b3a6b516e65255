"""Sources for a start without the bus: seed nodes to ask, and the last document of each kind, kept on disk.

A file is written next to the old one, synced, and renamed over it, so a process that is killed leaves one or the other,
whole. It contains its format, a hash, and, with a key, a signature. A file that is damaged, foreign, oversized,
unsigned or of a later release causes a warning, and counts as missing. A folder that cannot be written causes one
warning: the files are never needed while the bus is available.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import TypeVar

from understudy_shared.base.background import shielded
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.files import PRIVATE_FOLDER
from understudy_shared.base.words import HostInfo
from understudy_shared.bus.message_auth import MAX_LINE_BYTES, MessageAuth, UnauthenticError
from understudy_shared.bus.messages import MAX_MESSAGE_BYTES, BadMessageError, Message

log = logging.getLogger(__name__)

MAX_SEEDS = 64
"""Limit on the seeds. One seed that answers names all other nodes, so a longer list is a mistake."""

_SEED = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]/@,]+)):(?P<port>[0-9]{1,5})")


def parse_seeds(text: str) -> tuple[HostInfo, ...]:
    """Return the seeds in `text`, each once. Raises SettingsError, which names the malformed seed."""
    found: dict[HostInfo, None] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        match = _SEED.fullmatch(part)
        port = 0 if match is None else int(match["port"])
        if match is None or not 1 <= port <= 65535:
            raise SettingsError(
                f"{part!r} is not a seed",
                where="seed",
                fix="Give nodes as host:port with commas between, an IPv6 address in brackets: n1:7101,[::1]:7101",
            )
        found[HostInfo(match["v6"] or match["host"], port)] = None
    if len(found) > MAX_SEEDS:
        raise SettingsError(f"there are {len(found)} seeds, above {MAX_SEEDS}", where="seed", fix="A few are enough")
    return tuple(found)


MAGIC = b"understudy-remembered 1"
"""The mark of this file format; the document in the file has a format of its own."""

MIN_GAP_S = 1.0
"""Least time between two writes. An assignment may change step by step, and need not be saved more often."""

FLUSH_TIMEOUT_S = 2.0
"""Time limit for the last write at the end of the process: it does not wait longer for a disk that hangs."""

_MAX_FILE_BYTES = MAX_MESSAGE_BYTES + 256 + MAX_LINE_BYTES

M = TypeVar("M", bound=Message)


class Remembered:
    """The documents of one application in one folder. Calls block on the disk; two processes may share a folder."""

    def __init__(self, folder: Path, application_id: str, auth: MessageAuth | None = None) -> None:
        """Set the folder, without touching it.

        `auth` signs and verifies documents; without it signatures are ignored.
        """
        self.folder = folder
        self._application_id = application_id
        self._auth = auth or MessageAuth(application_id)
        self._refused: str | None = None

    def load(self, kind: type[M]) -> M | None:
        """Return the last saved document of a kind; None, with a warning, if the file cannot be used."""
        path = self._path(kind)
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"it cannot be read: {error.strerror or error}", path)
            return None
        head, _, sealed = content.partition(b"\n")
        if len(content) > _MAX_FILE_BYTES or head != _head(sealed):
            self._warn("it is damaged, or of a later release", path)
            return None
        try:
            found = self._auth.opened(sealed)
        except UnauthenticError as error:
            self._auth.on_refused(error, str(path))
            self._warn(f"it is {error.what}", path)
            return None
        if found.kind != _name(kind):
            self._warn("it is of another kind", path)
            return None
        try:
            return kind.decode(found.document, application_id=self._application_id, where=str(path))
        except BadMessageError as error:
            self._warn(str(error), path)
            return None

    def save(self, document: Message) -> bool:
        """Save a document in place of the last one of its kind. Return False, with one warning, if that failed."""
        payload = document.encode()
        if len(payload) > MAX_MESSAGE_BYTES:
            return self._not_saved(f"a {type(document).__name__.lower()} of {len(payload)} bytes is too large")
        try:
            self.folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            sealed = self._auth.sealed(_name(type(document)), payload)
            _replace(self._path(type(document)), _head(sealed) + b"\n" + sealed)
        except OSError as error:
            return self._not_saved(error.strerror or str(error))
        self._refused = None
        return True

    def _path(self, kind: type[Message]) -> Path:
        return self.folder / f"{kind.__name__.lower()}.remembered"

    def _warn(self, why: str, path: Path) -> None:
        log.warning("a remembered document is not used: %s (%s)", why, path, extra={"action": "not-remembered"})

    def _not_saved(self, why: str) -> bool:
        if why != self._refused:
            text = "cannot remember for a start without Redis: %s (%s)"
            log.warning(text, why, self.folder, extra={"action": "cannot-remember"})
        self._refused = why
        return False


class Memory:
    """The writer of the latest document of each kind, off the loop and at most once per MIN_GAP_S. One loop uses it.

    Without a folder (`remembered` is None) it keeps no document.
    """

    def __init__(self, remembered: Remembered | None) -> None:
        self._remembered = remembered
        self._waiting: dict[type[Message], Message] = {}
        self._told = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None

    def note(self, document: Message) -> None:
        if self._remembered is not None:
            self._waiting[type(document)] = document
            self._told.set()

    async def load(self, kind: type[M]) -> M | None:
        """Return the last saved document of a kind, of this process or an earlier one."""
        return None if self._remembered is None else await asyncio.to_thread(self._remembered.load, kind)

    async def keep(self) -> None:
        while True:
            await self._told.wait()
            await self._write()
            await asyncio.sleep(MIN_GAP_S)

    async def flush(self) -> None:
        """Save the pending documents, with a warning if the disk hangs. Call it after `keep` has ended."""
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                if self._writing is not None:
                    await self._writing
                if self._waiting:
                    await self._write()
        except TimeoutError:
            log.warning("the disk hangs: not all documents are saved", extra={"action": "cannot-remember"})

    async def _write(self) -> None:
        self._told.clear()
        documents, self._waiting = list(self._waiting.values()), {}
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._save, documents))
        await shielded(self._writing)  # `flush` waits for this write: a later one must not overtake it

    def _save(self, documents: list[Message]) -> None:
        if self._remembered is not None:
            for document in documents:
                self._remembered.save(document)


def _name(kind: type[Message]) -> bytes:
    return kind.__name__.lower().encode()


def _head(sealed: bytes) -> bytes:
    return MAGIC + b" " + hashlib.sha256(sealed).hexdigest().encode()


def _replace(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically, safe against a crash. Remove drafts that killed writers left."""
    _remove_drafts(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".draft", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as draft:
            draft.write(content)
            draft.flush()
            os.fsync(draft.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_drafts(path: Path) -> None:
    """Remove drafts older than the file itself: their writers were killed, or were overtaken."""
    try:
        newest_ns = path.stat().st_mtime_ns
    except FileNotFoundError:
        return
    for draft in path.parent.glob(f".{path.name}.*.draft"):
        try:
            if draft.stat().st_mtime_ns < newest_ns:
                draft.unlink()
        except FileNotFoundError:  # its writer renamed it meanwhile
            continue
