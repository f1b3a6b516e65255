"""The parts that the adapters of object stores have in common: the location, the library's store of it, and the
credentials that the library gets.

The library reads the environment itself, and renews what a role or an identity gives. An adapter adds what the library
does not know: files in the format of a store's own tools.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy_node.checkpoint.store_failures import StoreTerms
from understudy_shared.base.errors import NotACheckpointError, SettingsError
from understudy_shared.base.masking import masked_location

if TYPE_CHECKING:
    from obstore.store import RetryConfig

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


class StoreFolder:
    """A checkpoint in a bucket or a container: the objects below `prefix`, or all with "", as the URL says. `access`
    returns the credentials, for each store that is opened.
    """

    terms: StoreTerms
    library: Callable[..., Any]
    """The library's class of such stores."""

    def __init__(self, url: str, bucket: str, path: str | None, access: Callable[[], StoreAccess]) -> None:
        self.url = masked_location(url.rstrip("/"))
        self.bucket, self.prefix = bucket, (path or "").strip("/")
        self.looked_in = self.endpoint = ""
        self._access = access

    def open(self, client: dict[str, Any], retry: RetryConfig) -> Any:
        """Open the library's store of the folder, with the present credentials."""
        access = self._access()
        self.looked_in, self.endpoint = access.looked_in, access.endpoint
        others = {} if access.provider is None else {"credential_provider": access.provider}
        return self.library(
            self.bucket,
            prefix=self.prefix or None,
            config=access.config,
            client_options=access.client(client),
            retry_config=retry,
            **others,
        )


def location_of(url: str, form: re.Pattern[str], *, store: str, fix: str) -> re.Match[str]:
    """Parse a URL. Raises NotACheckpointError, which does not show its secrets, for one of another form."""
    found = form.fullmatch(url)
    if found is None:
        fix = f"{fix}, never from the URL (docs/object-stores.md)"
        raise NotACheckpointError(f"This is not a location in {store}", where=masked_location(url), fix=fix)
    return found


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
