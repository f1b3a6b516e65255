"""Parses options that name a folder on this machine (pure)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from understudy_shared.base.errors import SettingsError


def local_path(name: str, text: str) -> Path:
    """Return the absolute path for a path or a `file:` URI. Raises SettingsError for any other URI."""
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return Path(unquote(parts.path)).absolute()
    if parts.scheme and "://" in text:
        raise SettingsError(
            f"'{text}' is not a folder of this machine", where=f"option {name}", fix="Give a path or a file: URI"
        )
    return Path(text).absolute()
