"""Join the state of a query with a file, in Polars: which aircraft of a fleet flew most, by manufacturer.

UNDERSTUDY_URL=http://router-1:8080 python docs/examples/polars_join.py planes.csv

The file has the columns `tailnum` and `manufacturer`. Install '.[polars]'.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

from understudy import Client


def by_manufacturer(client: Client, fleet: Path) -> pl.DataFrame:
    """Return the flights of each manufacturer's aircraft."""
    return (
        pl.scan_csv(fleet)
        .join(client.store("aircraft").scan().to_polars().lazy(), on="tailnum")
        .group_by("manufacturer")
        .agg(pl.col("flights").sum(), aircraft=pl.len())
        .sort("flights", descending=True)
        .collect()
    )


if __name__ == "__main__":
    with Client() as reader:
        print(by_manufacturer(reader, Path(sys.argv[1])))
