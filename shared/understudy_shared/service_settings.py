"""Where a service's settings come from: flags, `UNDERSTUDY_*` variables, or a TOML file, in this order of precedence.

A service's own model says what there is: frozen, unknown keys refused, a reason above each default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from understudy_shared.connection_guard import ConnectionGuard, file_limit
from understudy_shared.connection_limits import ConnectionLimits, connections_allowed
from understudy_shared.memory_use import default_limit_bytes
from understudy_shared.sizes import BadSizeError, parse_size

Port = Annotated[int, Field(ge=0, le=65535)]


def _size(given: object) -> object:
    """A text with a unit as bytes; pydantic wants a ValueError of what is wrong."""
    if not isinstance(given, str):
        return given
    try:
        return parse_size(given)
    except BadSizeError as error:
        raise ValueError(str(error)) from None


Bytes = Annotated[int, Field(ge=0), BeforeValidator(_size)]
"""A size: a number of bytes, or a text with a unit of 1024 such as 64MiB."""


class ServiceSettings(BaseSettings):
    """What every service's settings have in common."""

    model_config = SettingsConfigDict(env_prefix="UNDERSTUDY_", extra="forbid", frozen=True)

    max_connections: int = Field(10_000, ge=1)
    """Open at once; fewer where the process may not open twice as many files. Envoy's advice for the edge is 50,000."""

    memory_limit_bytes: Bytes | None = None
    """At 95 % idle connections are closed, at 98 % requests refused. By default the control group's limit, or 80 % of
    the machine's memory; 0 is no limit."""

    header_timeout_ms: int = Field(10_000, ge=100, le=600_000)
    """Longest time from the first byte of a request to the last of its headers; Envoy's advice for the edge."""

    body_timeout_ms: int = Field(30_000, ge=100, le=600_000)
    """Longest time without a byte of a body that is not whole; and 500 bytes a second are the least beyond it."""

    unread_timeout_ms: int = Field(30_000, ge=100, le=600_000)
    """Longest time in which a peer reads nothing of an answer that waits for it."""

    def connection_guard(self) -> ConnectionGuard:
        """What watches over the service's connections."""
        wanted, reserved = connections_allowed(self.max_connections, file_limit())
        limit_bytes = default_limit_bytes() if self.memory_limit_bytes is None else self.memory_limit_bytes
        return ConnectionGuard(
            ConnectionLimits(
                max_connections=wanted,
                reserved_connections=reserved,
                memory_limit_bytes=limit_bytes,
                header_timeout_ms=self.header_timeout_ms,
                body_timeout_ms=self.body_timeout_ms,
                unread_timeout_ms=self.unread_timeout_ms,
            )
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then variables, then the file that UNDERSTUDY_CONFIG names."""
        path = os.environ.get("UNDERSTUDY_CONFIG")
        file = (TomlConfigSettingsSource(settings_cls, Path(path)),) if path else ()
        return (init_settings, env_settings, *file)
