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
        "`hdfs://`, `webhdfs://`, `swebhdfs://`",
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
    ("state formats of joins", "2, 3 and 4; 1 is listed as not served"),
    ("state formats of `applyInPandasWithState`", "1 and 2"),
    ("state format of aggregations", "2; 1 is listed as not served"),
)


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
        "Spark before 4.0 is not supported. `understudy doctor CHECKPOINT` says of a checkpoint of yours what can be "
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
