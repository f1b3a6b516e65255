"""Where a service's settings come from: flags, `UNDERSTUDY_*` variables, or a TOML file, in this order of precedence.

A service's own model says what there is: frozen, unknown keys refused, a reason above each default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from understudy_shared.base.masking import masked_location
from understudy_shared.base.sizes import BadSizeError, parse_size

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

    model_config = SettingsConfigDict(env_prefix="UNDERSTUDY_", extra="forbid", frozen=True, hide_input_in_errors=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        """As people may see it: a URL among the settings may hold a password."""
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
        """Flags, then variables, then the file that UNDERSTUDY_CONFIG names."""
        path = os.environ.get("UNDERSTUDY_CONFIG")
        file = (TomlConfigSettingsSource(settings_cls, Path(path)),) if path else ()
        return (init_settings, env_settings, *file)
