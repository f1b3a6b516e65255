"""Changes to the file of credentials: a key is added at its end, or cut out. All else stays as the operator wrote it.

A file is replaced as a whole, so that a service never reads half of it, and only its owner may read it.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import orjson

from understudy_shared.auth.credentials import CredentialsError, StoredKey, parse_credentials, parse_file
from understudy_shared.auth.presented import NewKey

_HEAD = "# Understudy's credentials. docs/security.md says what stands here; understudy keys writes it.\n"
_KEY_HEAD = "[[keys]]"
_IS_KEY = re.compile(r"(?m)^\[\[keys\]\]")


def stored_keys(path: Path) -> list[StoredKey]:
    """Read the keys of a file, in its order. Raises CredentialsError."""
    return parse_file(_read(path)).keys


def add_key(
    path: Path, key: NewKey, *, principal: str, roles: Sequence[str], now: datetime, expires_at: datetime | None
) -> None:
    """Write a key's digest to the end of a file, which is made if it is not there. Raises CredentialsError."""
    times = {"created_at": now, **({} if expires_at is None else {"expires_at": expires_at})}
    lines = [
        _KEY_HEAD,
        f"id = {_text(key.key_id)}",
        f"principal = {_text(principal)}",
        f"roles = [{', '.join(map(_text, roles))}]",
        f"sha256 = {_text(key.sha256)}",
        *(f"{name} = {time.isoformat(timespec='seconds')}" for name, time in times.items()),
    ]

    def added(text: str) -> str:
        return f"{text.rstrip()}\n\n{chr(10).join(lines)}\n".lstrip()

    _change(path, added, may_be_new=True)


def revoke_key(path: Path, key_id: str) -> None:
    """Cut a key out of a file. Raises CredentialsError when it is not there."""

    def without(text: str) -> str:
        before = parse_file(text.encode()).keys
        if key_id not in {key.id for key in before}:
            known = ", ".join(key.id for key in before) or "none"
            raise CredentialsError(f"there is no key {key_id!r}", where=str(path), fix=f"Keys: {known}")
        parts = list(tables_of(text))
        at = [key.id for key in before].index(key_id)
        keys = [number for number, part in enumerate(parts) if _IS_KEY.search(part)]
        if len(keys) != len(before):
            raise _by_hand(path)
        left = "".join(part for number, part in enumerate(parts) if number != keys[at])
        if parse_file(left.encode()).keys != [key for key in before if key.id != key_id]:
            raise _by_hand(path)
        return left

    _change(path, without)


def _by_hand(path: Path) -> CredentialsError:
    fix = "Remove the key by hand, with its whole table"
    return CredentialsError("the keys are not written as tables of their own", where=str(path), fix=fix)


def tables_of(text: str) -> Iterator[str]:
    """Yield the text in pieces: each is a table, with the comment right above it."""
    piece: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            end = len(piece)
            while end and piece[end - 1].startswith("#"):
                end -= 1
            yield "".join(piece[:end])
            piece = piece[end:]
        piece.append(line)
    yield "".join(piece)


def _change(path: Path, changed: Callable[[str], str], *, may_be_new: bool = False) -> None:
    """Replace a file by its changed text, unless services would refuse the result."""
    try:
        with alone_in(path.absolute().parent):
            is_new = may_be_new and not path.exists()
            text = changed(_HEAD if is_new else _read(path).decode())
            parse_credentials(text.encode())
            replace_file(path, text)
    except OSError as error:
        what = f"the file cannot be written: {error.strerror or error}"
        raise CredentialsError(what, where=str(path), fix="Check the path and who may write there") from None


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock, so that only one change in a folder runs at a time: two at once would lose one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file anew, whole or not at all; a symbolic link stays one."""
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # it is private from the start
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"the file cannot be read: {error.strerror or error}"
        raise CredentialsError(what, where=str(path), fix="Check the path; understudy keys new makes a file") from None


def _text(value: str) -> str:
    """Write a text as TOML: JSON's form is valid, except for DEL."""
    return orjson.dumps(value).decode().replace("\x7f", "\\u007f")
