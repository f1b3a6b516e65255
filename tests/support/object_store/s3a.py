"""S3A for a real Spark: the jars, which Maven brings once, and the settings with which a session finds the server."""

from __future__ import annotations

from pathlib import Path

from tests.support.kafka.maven import fetched_jars
from tests.support.object_store.s3_server import ACCESS_KEY, REGION, SECRET_KEY, S3Server

_POM = Path(__file__).with_name("s3a_jars") / "pom.xml"


def jars() -> Path | str:
    return fetched_jars(_POM, "spark-s3a-jars")


def session_conf(found: Path, s3: S3Server) -> dict[str, str]:
    """What a user sets for S3A, and how to reach this server."""
    return {
        "spark.jars": ",".join(map(str, sorted(found.glob("*.jar")))),
        "spark.hadoop.fs.s3a.endpoint": s3.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.access.key": ACCESS_KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET_KEY,
        "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
