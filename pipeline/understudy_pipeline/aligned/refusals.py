"""Errors of the source for calls of Spark that it refuses, whichever way it is read."""

from __future__ import annotations

from understudy_shared.base.errors import SettingsError


def fixed_columns() -> SettingsError:
    """Return the error for a schema that a user gives."""
    return SettingsError(
        "the columns of this source are fixed",
        where=".schema(...)",
        fix="Leave it out, and take fields out of value with F.from_json(F.col('value').cast('string'), ...)",
    )


def streams_only() -> SettingsError:
    """Return the error for `spark.read`."""
    return SettingsError(
        "this source reads streams only",
        where="spark.read",
        fix="Read a batch of Kafka's records with spark.read.format('kafka'), which has the same columns up to "
        "merge_order, or a stream that ends with .trigger(availableNow=True)",
    )
