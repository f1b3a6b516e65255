"""Join the state of a query with a file, in Polars: which aircraft of a fleet flew most, by manufacturer.

UNDERSTUDY_URL=http://router-1:8080 python docs/examples/polars_join.py planes.csv

The file has the columns `tailnum` and `manufacturer`. Install '.[polars]'.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

from understudy import Client
from understudy.typed import frames


def state(client: Client, store: str) -> pl.DataFrame:
    """Return all rows of a store, of one version, with Spark's types: a decimal is a decimal."""
    asked = client.store(store)
    schema = asked.info().schema
    frame: pl.DataFrame = frames.to_polars(schema, (row.raw for row in asked.scan()))
    return frame


def by_manufacturer(client: Client, fleet: Path) -> pl.DataFrame:
    """Return the flights of each manufacturer's aircraft."""
    return (
        pl.scan_csv(fleet)
        .join(state(client, "aircraft").lazy(), on="tailnum")
        .group_by("manufacturer")
        .agg(pl.col("flights").sum(), aircraft=pl.len())
        .sort("flights", descending=True)
        .collect()
    )


if __name__ == "__main__":
    with Client() as reader:
        print(by_manufacturer(reader, Path(sys.argv[1])))
