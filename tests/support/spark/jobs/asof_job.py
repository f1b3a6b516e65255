"""The example's as-of join as a process of its own, which waits to be killed before the commit of a batch.

The state and the output of every batch are on disk when the job says `batch <N> written`; in the batch named by
`--hold` it then waits for ever, so that the commit log never gets its entry. Meanwhile it says `fetched <N>` for the
records that the source has fetched so far.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from pathlib import Path

from tests.support.spark.asof_world import AsofRun, asof_session, fetched
from tests.support.spark.process import say


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of the run")
    parser.add_argument("--spark", type=Path, required=True, help="for the session's own files")
    parser.add_argument("--options", required=True, help="of the source, as JSON")
    parser.add_argument("--hold", type=int, required=True, metavar="BATCH", help="wait before the commit of this batch")
    arguments = parser.parse_args()

    def written(batch_id: int) -> None:
        say(f"batch {batch_id} written")
        if batch_id == arguments.hold:
            threading.Event().wait()

    with asof_session(arguments.spark) as spark:
        query = AsofRun(arguments.folder).start(spark, json.loads(arguments.options), written=written)
        while query.isActive:
            say(f"fetched {fetched(query)}")
            time.sleep(0.1)
        query.awaitTermination()


if __name__ == "__main__":
    main()
