"""TLS of the client: which authorities it trusts, and the certificate that it shows where one is asked for."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from understudy.client.errors import UsageError
from understudy_shared.tls.trouble import tls_trouble

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
        fix = "Give files in PEM format; the key must be that of the certificate"
        return UsageError(f"the files for TLS cannot be used: {why}", where=where, fix=fix)


def trust(
    environ: Mapping[str, str], context: ssl.SSLContext | None, *, ca_file: Named, cert_file: Named, key_file: Named
) -> Trust:
    """Return what is trusted: a context, files that are given, or those of the environment. Raises UsageError."""
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
