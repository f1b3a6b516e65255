"""Makes `format("understudy")` known: Spark looks for `DefaultSource` in every module that is called `pyspark_*`.

It does so at the first use of any Python data source. Without the packages that the source needs, the others must be
found nevertheless, and who asks for this one must hear what to install.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource

from understudy_shared.errors import SettingsError

__all__ = ["DefaultSource"]


class MissingSource(DataSource):
    """In the place of the source where its packages are not installed."""

    missing = ""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        raise SettingsError(
            f"the source 'understudy' is not installed with all that it needs: {self.missing}",
            where="format understudy",
            fix="pip install 'understudy[pipeline]'",
        )

    @classmethod
    def name(cls) -> str:
        """As in `format(...)`."""
        return "understudy"


DefaultSource: type[DataSource]
try:
    from understudy_pipeline.aligned.source import AlignedSource
except ImportError as error:
    MissingSource.missing = str(error)
    DefaultSource = MissingSource
else:
    DefaultSource = AlignedSource
