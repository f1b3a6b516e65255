"""The API key or token that a client shows: given, from a file, or of the environment.

A file is read again when a server refuses what it had: keys and tokens are replaced while programs run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from understudy.client.errors import UsageError

KEY, KEY_FILE = "UNDERSTUDY_API_KEY", "UNDERSTUDY_API_KEY_FILE"
MAX_KEY_BYTES = 8192

HOW = f"Set {KEY}, or {KEY_FILE} to a file with the key. An operator makes one: understudy keys new"


class Credential:
    """The key or token of a client, which may be empty."""

    def __init__(self, key: str, file: Path | None, where: str) -> None:
        """Read it for the first time. Raises UsageError for a key that cannot be sent."""
        self._file, self._where = file, where
        self.key = checked_key(key, where) if file is None else self._read()

    def __repr__(self) -> str:
        return f"Credential({'none' if not self.key else 'shown'}, {self._file or 'given'})"

    def is_renewed(self, shown: str) -> bool:
        """Whether the file has another key than the one that was shown. It is used from now on."""
        if self._file is not None and self.key == shown:
            try:
                self.key = self._read()
            except UsageError:  # it is being replaced, or gone: the last one stays
                return False
        return self.key != shown

    def _read(self) -> str:
        assert self._file is not None
        key = checked_key(read_key(self._file, self._where), self._where)
        if not key:
            raise UsageError(f"the file {self._file} is empty", where=self._where, fix=HOW)
        return key


def credential(
    environ: Mapping[str, str], key: str | None = None, file: str | os.PathLike[str] | None = None
) -> Credential:
    """Return the credential that is given, else that of the environment. Raises UsageError."""
    if key is not None and file is not None:
        raise UsageError("both api_key and api_key_file are given", where="api_key", fix="Give one of them")
    if key is not None:
        return Credential(key, None, "api_key")
    if file is not None:
        return Credential("", Path(file), "api_key_file")
    key, name = environ.get(KEY, ""), environ.get(KEY_FILE, "")
    if key and name:
        raise UsageError(f"both {KEY} and {KEY_FILE} are set", where="the environment", fix="Unset one of them")
    return Credential(key, Path(name) if name else None, KEY_FILE if name else KEY)


def checked_key(text: str, where: str) -> str:
    """Return a key without the space around it. Raises UsageError for what no header can carry."""
    key = text.strip()
    if key.isascii() and key.isprintable() and " " not in key:
        return key
    fix = "It is one word: usk_..., as understudy keys new says it, or a token of an issuer"
    raise UsageError(f"{where} holds something that is not a key", where=where, fix=fix)


def read_key(path: Path, where: str) -> str:
    """Read a file with a key. Raises UsageError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_KEY_BYTES).decode("ascii", "replace")
    except OSError as error:
        why = f"the key cannot be read: {error.strerror or error}"
        raise UsageError(why, where=where, fix=f"Check the path in {where}: {path}") from None
