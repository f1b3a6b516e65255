"""The base class and the types of declarations of settings.

A declaration names a setting once: its type, its default, and below it the sentence that the help of its flag shows.
A service's own settings build on it; the command line derives flags from it, without importing the service.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from understudy_shared.base.texts import BadSizeError, parse_size

Port = Annotated[int, Field(ge=0, le=65535)]


def _size(given: object) -> object:
    """Convert a text with a unit to bytes. Raises ValueError, as pydantic requires, for a malformed text."""
    if not isinstance(given, str):
        return given
    try:
        return parse_size(given)
    except BadSizeError as error:
        raise ValueError(str(error)) from None


Bytes = Annotated[int, Field(ge=0), BeforeValidator(_size)]
"""Size: a number of bytes, or a text with a unit of 1024 such as 64MiB. Its name has the word `bytes`, as its flag."""


class Fields(BaseModel, use_attribute_docstrings=True, defer_build=True):
    """Settings that are declared together. The settings of the services that have them check their values.

    `json_schema_extra={"derived": ...}` says in words which value holds if a setting is not given.
    """
