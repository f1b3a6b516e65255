"""The aligned source on a Spark standalone cluster of one worker and of two, beside Spark's own Kafka source there.

    python -m benchmarks.aligned_cluster [--records 600000] [--rounds 3]    (more records than a batch of 100,000)

Workers have one core each and cannot see the planner's folder, so that `understudy` writes a spool that no executor
maps. Otherwise all is as in `benchmarks.aligned`: one broker, the same records and columns, sources by turns. Master,
driver, planner and broker run on the same machine as the workers: a second worker can bring more only where cores are
free.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.support.spark.hidden_folder import hide
from tests.support.spark.standalone import standalone_cluster

from benchmarks.aligned import BATCH, print_throughput
from benchmarks.aligned_speed import fill_topics, throughput
from benchmarks.aligned_world import world

WORKERS = (1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for workers in WORKERS:
        _measure(workers, records=options.records, rounds=options.rounds)


def _measure(workers: int, *, records: int, rounds: int) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="understudy-cluster-", ignore_cleanup_errors=True) as folder,
        standalone_cluster(Path(folder) / "cluster", workers=workers, hiding=_hiding) as cluster,
        world(parent=cluster.driver_folder, conf=_conf(cluster.url, workers)) as running,
    ):
        fill_topics(running, records)
        print(f"workers of one core: {workers}", flush=True)
        print_throughput(throughput(running, records=records, batch=BATCH, rounds=rounds))


def _hiding(driver_folder: Path) -> list[str]:
    found = hide(driver_folder)
    if isinstance(found, str):
        raise SystemExit(f"executors would see the planner's folder: {found}")
    return found


def _conf(url: str, workers: int) -> dict[str, str]:
    return {
        "spark.cores.max": str(workers),
        "spark.executor.cores": "1",
        "spark.executor.memory": "768m",
        "spark.master": url,
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }


if __name__ == "__main__":
    main()
