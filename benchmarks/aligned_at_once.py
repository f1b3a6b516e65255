"""`format("understudy-at-once")`: the aligned source, but each batch is written to the spool when Spark asks for it."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql.types import StructType

from understudy_aligned.source import AlignedSource, AlignedStreamReader


class AtOnce(AlignedSource):
    """Nothing is written ahead (docs/decisions/0024-spool-ahead.md)."""

    @classmethod
    def name(cls) -> str:
        return "understudy-at-once"

    def streamReader(self, schema: StructType) -> AlignedStreamReader:  # noqa: N802  # Spark's signature
        return AtOnceReader(self._parsed)


class AtOnceReader(AlignedStreamReader):
    """As the source's own, with one switch off."""

    SPOOLS_AHEAD: ClassVar[bool] = False
