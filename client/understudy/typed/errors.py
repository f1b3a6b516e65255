"""Errors between a store and the Python types of its readers."""

from __future__ import annotations

from understudy_shared.base.errors import UnderstudyError


class SchemaError(UnderstudyError):
    """The entry of a store that this release cannot read."""


class ModelError(UnderstudyError):
    """A model that does not fit the columns of a store: `where` names its field, `fix` says what would fit."""


class UnfitValueError(UnderstudyError):
    """A value that the wanted Python type cannot hold, or that does not have the form of its Spark type."""
