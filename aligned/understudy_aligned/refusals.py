"""Errors of the source for calls of Spark that it refuses, whichever way it is read."""

from __future__ import annotations

from understudy_shared.base.errors import SettingsError


class OlderSparkError(SettingsError, ImportError):
    """The installed PySpark is too old for the source: its Python data sources cannot limit a batch."""

    def __init__(self, release: str) -> None:
        """Name the installed release."""
        super().__init__(
            f"the source 'understudy' needs PySpark 4.3, and this is {release}",
            where="format understudy",
            fix="Read Kafka with Spark's format('kafka') here: `announce` works with PySpark 3.5, and nodes serve the "
            "state of every query since Spark 3.3",
        )


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
