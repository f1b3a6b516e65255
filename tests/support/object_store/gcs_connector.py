"""Google's connector for a real Spark: the jar, which Maven brings once, and how a session finds the server."""

from __future__ import annotations

from pathlib import Path

from tests.support.kafka.maven import fetched_jars
from tests.support.object_store.gcs_server import GcsServer

_POM = Path(__file__).with_name("gcs_jars") / "pom.xml"
_CLASSES = "com.google.cloud.hadoop.fs.gcs.GoogleHadoop"


def jars() -> Path | str:
    return fetched_jars(_POM, "spark-gcs-jars")


def session_conf(found: Path, gcs: GcsServer) -> dict[str, str]:
    """What a user sets for the connector beside Hadoop 3.5, and how to reach this server."""
    connector = {
        "storage.root.url": f"{gcs.endpoint}/",
        "auth.type": "UNAUTHENTICATED",
        "project.id": "tests",
        "operation.move.enable": "false",  # the server has no moves, so a rename is a copy and a delete
        # Hadoop's defaults for its own connector are sizes such as 64m; this one reads numbers.
        "block.size": str(1 << 26),
        "rewrite.max.chunk.size": str(1 << 29),
        "outputstream.buffer.size": str(1 << 23),
        "inputstream.inplace.seek.limit": str(1 << 23),
        "inputstream.min.range.request.size": str(1 << 21),
    }
    return {
        "spark.jars": ",".join(map(str, sorted(found.glob("*.jar")))),
        "spark.hadoop.fs.gs.impl": f"{_CLASSES}FileSystem",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": f"{_CLASSES}FS",
        **{f"spark.hadoop.fs.gs.{name}": value for name, value in connector.items()},
    }
