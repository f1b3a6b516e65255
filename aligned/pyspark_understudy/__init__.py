"""Registers `format("understudy")`: Spark looks for `DefaultSource` in every module that is called `pyspark_*`.

Spark does so at the first use of any Python data source. So importing this module must succeed even if packages are
missing that this source needs, or PySpark is older. Then a query that uses this source gets an error that says so.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.extras import install_fix

__all__ = ["DefaultSource"]


class MissingSource(DataSource):
    """The replacement of the source if its packages are not installed."""

    error: ImportError

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if isinstance(self.error, SettingsError):
            raise self.error
        raise SettingsError(
            f"the source 'understudy' lacks packages that it needs: {self.error}",
            where="format understudy",
            fix=install_fix("pipeline"),
        )

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "understudy"


DefaultSource: type[DataSource]
try:
    from understudy_aligned.source import AlignedSource
except ImportError as error:
    MissingSource.error = error
    DefaultSource = MissingSource
else:
    DefaultSource = AlignedSource
