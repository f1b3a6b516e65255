"""The page of what is supported: Spark, provider, checkpoint format and storage, from what tests compared."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence

from tests.support.oracle.record import Compared
from tools.oracle_document import LAYOUTS, MEASURED, OPERATORS, ROOT
from tools.reference.markdown import GENERATED, code, page, table

_CHECKPOINT = "tests/integration/node/checkpoint"

STORES = (
    (
        "local disk, or a mount",
        "a path",
        "the tables above",
        "`tests/integration/node/stores/test_oracle_equals_spark.py`",
    ),
    (
        "S3 and what speaks its protocol",
        "`s3://`, `s3a://`",
        "s3proxy and MinIO, written by Spark through S3A; under faults",
        f"`{_CHECKPOINT}/test_object_store_spark.py`",
    ),
    (
        "Azure Storage",
        "`abfss://`, `az://`",
        "Azurite, a flat account, written by Spark through ABFS; under faults. No emulator has a hierarchical one",
        f"`{_CHECKPOINT}/test_object_store_spark.py`",
    ),
    (
        "Google Cloud Storage",
        "`gs://`",
        "fake-gcs-server, written by Spark through Google's connector; under faults",
        f"`{_CHECKPOINT}/test_object_store_spark.py`",
    ),
    (
        "HDFS",
        "`hdfs://`",
        "a real HDFS whose processes are killed and frozen; nodes need no JVM",
        f"`{_CHECKPOINT}/test_hdfs_files.py`",
    ),
)
"""Storage of a checkpoint: how it is written, what it was tried against, and the test that says so."""

ALSO = (
    ("changelogs of RocksDB", "with and without `changelogCheckpointing`"),
    ("codecs of changelogs", "lz4, zstd, snappy"),
    ("row checksums", "read, and held against the rows"),
    ("encoding of `transformWithState`", "`unsaferow` and `avro`"),
    ("state formats of joins", "1 to 4; rows of format 1 do not say whether they found a match"),
    ("state formats of `applyInPandasWithState`", "1 and 2"),
    ("state formats of aggregations", "1 and 2; in 1 a value has the columns of the key, too"),
    ("columns of type `variant`", "shown as JSON, the text that Spark's `to_json` makes of it"),
    ("columns of type `geometry`, `geography`", "shown as their bytes; all others are decoded"),
    (
        "state of queries that began before Spark 3.2.2 or 3.3",
        "read; a key of it is asked of [all partitions](../api.md#scattered-stores)",
    ),
)


_ORACLES = "tests/integration/node/stores"
_SPARK_3, _RELEASES = f"`{_ORACLES}/test_oracle_of_spark_3.py`", f"`{_ORACLES}/test_oracle_of_releases.py`"
_BY_4_3 = "Spark 4.3's: Spark 3 has none of its own"
_LOOKUPS, _EVERY_CALL = "lookups", "every call, of a node and through a router"
_MOVED = "continued by Spark 4.3 under a node"

RELEASES = (
    (
        "3.1.0, 3.2.0",
        (
            "six checkpoints in Spark's own test resources: `flatMapGroupsWithState`, and of 3.2 also aggregation, "
            "session window, `dropDuplicates`; HDFS-backed"
        ),
        _BY_4_3,
        _LOOKUPS,
        "",
        "`tests/contract/node/stores/test_golden_checkpoints.py`",
    ),
    ("3.2.1", "the release itself, in the test; HDFS-backed", _BY_4_3, _LOOKUPS, "", _SPARK_3),
    ("3.3.4", "the release itself, in the test", _BY_4_3, _EVERY_CALL, _MOVED, _SPARK_3),
    ("3.4.4", "the release itself, in the test", _BY_4_3, _EVERY_CALL, _MOVED, _SPARK_3),
    (
        "3.5.7",
        "the release itself, in the test",
        _BY_4_3,
        f"{_EVERY_CALL}; the results that `announce` sends",
        (
            f"{_MOVED}; [the proof](../proof.md#a-query-of-spark-35): killed under a cluster, moved to Spark 4.3 "
            "and back; `announce` over a real Redis"
        ),
        (
            f"{_SPARK_3}, `tests/system/test_proof.py`, "
            "`tests/integration/pipeline/announcing/test_announce_of_spark_3.py`"
        ),
    ),
    *(
        (release, "the release itself, in the test", "its own", "lookups; results", "", _RELEASES)
        for release in ("4.0.5", "4.1.4", "4.2.1")
    ),
    (
        "4.3.0",
        "the release itself, in the test",
        "its own",
        "lookups; each kind of read in [the proof](../proof.md)",
        "the proof, under every fault",
        f"`{_ORACLES}/test_oracle_equals_spark.py`, `tests/system/test_proof.py`",
    ),
)
"""The comparison of each release: who wrote the state, whose reader said what is right, what was asked, what was
done while the query ran, and the tests.
"""

PYTHONS_TRIED = (
    "all tests run on 3.11, the unit tests also on 3.12 and 3.13. Every dependency has a wheel for 3.14, "
    "on which so far little was run"
)
"""The tests that ran on each, for the line with the list of the classifiers."""


def support_matrix_page() -> str:
    """Render the tables."""
    lines = [Compared(**line) for line in json.loads(MEASURED.read_text())]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = [name.rpartition(" ")[2] for name in project["classifiers"] if ":: Python :: 3." in name]
    return page(
        "# Support matrix",
        GENERATED.format(source="what tests compared with Spark's own state reader (`docs/oracle.json`)"),
        "## Spark, operators, providers, formats",
        "A cell has the releases of Spark whose state was compared with Spark's own reader, key by key at every "
        "retained version, all equal. [The oracle](../oracle.md) has the numbers. An empty cell was not compared.",
        table(
            ("operator", *LAYOUTS.values()),
            ((OPERATORS.get(name, code(name)), *_releases_by_layout(lines, name)) for name in _operators(lines)),
        ),
        "`v1` and `v2` are `spark.sql.streaming.stateStore.checkpointFormatVersion`; the HDFS-backed provider has v1 "
        "alone. [What suits best](../pipeline.md#what-suits-understudy-best) is RocksDB, v2, with changelogs.",
        table(("also", "read"), ALSO),
        "## Releases of Spark",
        "How each release was compared, always at every retained version:",
        table(("Spark", "written by", "reader", "asked", "while the query ran", "in"), RELEASES),
        "Spark 3 writes no operator metadata: [which operator wrote a state](../pipeline.md#spark-3) follows from its "
        "directories, its columns and the settings of the query. Spark 3.0 and older leave no schema: continue such a "
        "query on a later release first. `understudy doctor CHECKPOINT` says of a checkpoint of yours what can be "
        "served, and what to change.",
        "## Storage",
        "A node reads every provider and format from every storage by the same code; only fetching a file differs.",
        table(("storage", "written", "tried against", "by"), STORES),
        "## Around it",
        table(
            ("part", "releases"),
            (
                ("Python of services and clients", f"{', '.join(pythons)}: {PYTHONS_TRIED}"),
                ("operating system", "Linux"),
                ("Redis, Valkey", "[which were tried](../how-to/redis.md#which-one)"),
                ("Kubernetes", "1.29 and later: [how](../how-to/kubernetes.md)"),
            ),
        ),
    )  # fmt: skip


def _operators(lines: Sequence[Compared]) -> list[str]:
    found = {line.operator for line in lines}
    return [name for name in OPERATORS if name in found] + sorted(found - OPERATORS.keys())


def _releases_by_layout(lines: Sequence[Compared], operator: str) -> list[str]:
    cells = []
    for provider, version, has_changelog in LAYOUTS:
        releases = {
            line.spark.rpartition(".")[0]
            for line in lines
            if (line.operator, line.provider, line.format_version, line.changelog)
            == (operator, provider, version, has_changelog)
        }
        cells.append(", ".join(sorted(releases)))
    return cells
