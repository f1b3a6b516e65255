"""The credentials that an adapter gives to the library of object stores, and where it looked for them.

The library reads the environment itself, and renews what a role or an identity gives. An adapter adds what the library
does not know: files in the format of a store's own tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from understudy_shared.base.errors import SettingsError

ReadFile = Callable[[Path], str | None]
"""A function that returns the text of a file; None if the file does not exist."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The settings that the library gets beyond the environment."""

    config: Mapping[str, str] = field(repr=False)
    allow_http: bool
    looked_in: str
    """The places where credentials are looked for."""
    provider: Callable[[], Any] | None = field(default=None, repr=False)
    """The provider that the library asks for a token, in place of an identity that it knows itself."""
    endpoint: str = field(default="", repr=False)
    """The URL at which the store is asked; empty if it is not known here."""

    def client(self, deadlines: dict[str, Any]) -> Any:
        """Return the options of the library's HTTP client."""
        return {**deadlines, "allow_http": True} if self.allow_http else deadlines


def text_of(path: Path) -> str | None:
    """Return the text of a file; None if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return None


def refuse_empty(environ: Mapping[str, str], variables: Iterable[str]) -> None:
    """Raise SettingsError for a variable without a value: the library would use it in place of what is set beside."""
    for variable in variables:
        if environ.get(variable) == "":
            raise SettingsError(
                f"{variable} is set, but has no value", where="environment", fix="Unset it, or give it a value"
            )
