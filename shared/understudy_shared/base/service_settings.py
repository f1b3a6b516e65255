"""Sources of a service's settings: flags, `UNDERSTUDY_*` variables, or a TOML file, in this order of precedence.

`understudy_shared.settings` declares what there is; a service's own model adds what follows from it. Frozen, and
unknown keys are refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from understudy_shared.base.masking import masked_location


class ServiceSettings(BaseSettings):
    """The base of every service's settings."""

    model_config = SettingsConfigDict(env_prefix="UNDERSTUDY_", extra="forbid", frozen=True, hide_input_in_errors=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        """Mask the values for people: a URL among the settings may hold a password."""
        for name, value in super().__repr_args__():
            yield name, masked_location(value) if isinstance(value, str) else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: flags, then variables, then the file that UNDERSTUDY_CONFIG names."""
        path = os.environ.get("UNDERSTUDY_CONFIG")
        file = (TomlConfigSettingsSource(settings_cls, Path(path)),) if path else ()
        return (init_settings, env_settings, *file)
