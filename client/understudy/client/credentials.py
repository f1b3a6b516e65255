"""The credentials and the trust of a client: its key or token, its certificate, and the authorities for TLS.

Each is given, or from a file or the environment. A key's file is read again when a server refuses the key, and the
files for TLS when they change: keys, tokens and certificates are replaced while programs run.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from understudy.client.errors import UsageError
from understudy_shared.tls.trouble import tls_trouble

KEY, KEY_FILE = "UNDERSTUDY_API_KEY", "UNDERSTUDY_API_KEY_FILE"
MAX_KEY_BYTES = 8192

HOW = f"Set {KEY}, or {KEY_FILE} to a file with the key. An operator makes one: understudy keys new"


class Credential:
    """The key or token of a client, which may be empty."""

    def __init__(self, key: str, file: Path | None, where: str) -> None:
        """Read it for the first time. Raises UsageError for a key that cannot be sent."""
        self._file, self._where = file, where
        self.key = checked_key(key, where) if file is None else self._read()

    def is_renewed(self, shown: str) -> bool:
        """Whether the file has another key than the one that was sent. It is used from now on."""
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
    """Return the given credential, else the environment's. Raises UsageError."""
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


VARIABLES = {"ca_file": "UNDERSTUDY_CA_FILE", "cert_file": "UNDERSTUDY_CERT_FILE", "key_file": "UNDERSTUDY_KEY_FILE"}

_Signatures = tuple[tuple[int, int, int], ...]
Named = str | os.PathLike[str] | None


class Trust:
    """The context for connections by TLS. It is made at the first one, and again when one of its files changed."""

    def __init__(self, files: Mapping[str, Path | None], context: ssl.SSLContext | None) -> None:
        self._files, self._given = files, context
        self._made: tuple[_Signatures, ssl.SSLContext] | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection. Raises UsageError for files that cannot be used."""
        if self._given is not None:
            return self._given
        try:
            signatures = tuple(_signature(path) for path in self._files.values() if path is not None)
            if self._made is None or self._made[0] != signatures:
                self._made = signatures, self._make()
        except (OSError, ValueError) as error:
            if self._made is None:
                raise self._wrong(error) from None
        return self._made[1]

    def _make(self) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=self._files["ca_file"])
        if (certificate := self._files["cert_file"]) is not None:
            made.load_cert_chain(certificate, self._files["key_file"])
        return made

    def _wrong(self, error: Exception) -> UsageError:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = ", ".join(str(path) for path in self._files.values() if path is not None)
        fix = "Give files in PEM format; the key must match the certificate"
        return UsageError(f"the files for TLS cannot be used: {why}", where=where, fix=fix)


def trust(
    environ: Mapping[str, str], context: ssl.SSLContext | None, *, ca_file: Named, cert_file: Named, key_file: Named
) -> Trust:
    """Return what is trusted: a context, the given files, or the environment's. Raises UsageError."""
    given = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
    if context is not None and any(given.values()):
        raise UsageError("both ssl_context and files are given", where="ssl_context", fix="Give one of them")
    named = {name: path or environ.get(VARIABLES[name]) or None for name, path in given.items()}
    return Trust({name: None if path is None else Path(path) for name, path in named.items()}, context)


def failure_text(error: BaseException) -> str:
    """Return why a connection failed, as a text for people."""
    if isinstance(error, ssl.SSLError):
        trouble = tls_trouble(error)
        return f"by TLS: {trouble.why if trouble is not None else error.reason or error}"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def _signature(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
