"""A router's settings: one frozen model, unknown keys refused, a reason above each default.

From flags, `UNDERSTUDY_*` variables, or a TOML file, in this order of precedence.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

Port = Annotated[int, Field(ge=0, le=65535)]


class RouterSettings(BaseSettings):
    """What `understudy router` is told."""

    model_config = SettingsConfigDict(env_prefix="UNDERSTUDY_", extra="forbid", frozen=True)

    redis: str = Field(min_length=1)
    """Redis or Valkey, shared with the nodes: redis://host:port/db, rediss://, unix:///path."""

    application_id: str = Field(min_length=1, max_length=256)
    """The query whose nodes are asked. A router reads no checkpoint, so there is nothing to derive it from."""

    host: str = "127.0.0.1"
    """Loopback unless told otherwise: there is no authentication yet."""

    port: Port = 8080
    """0 takes any free port and logs it."""

    hop_timeout_ms: int = Field(1000, ge=10, le=60_000)
    """Longest time a node may take for a hop before the next candidate is asked; a hop normally takes about 1 ms."""

    deadline_ms: int = Field(3000, ge=10, le=600_000)
    """Longest time a lookup may take in all, beyond what the reader asked it to wait: three hops that time out."""

    end_expiry_ms: int = Field(10_000, ge=1)
    """A confirmation of the end older than this counts no more: lag is unknown. As the nodes' setting of that name."""

    max_in_flight: int = Field(1024, ge=1)
    """Requests answered at once; one more gets 429."""

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
