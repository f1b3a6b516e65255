"""ABFS for a real Spark: the jars, which Maven brings once, and the settings with which a session finds Azurite."""

from __future__ import annotations

from pathlib import Path

from tests.support.kafka.maven import fetched_jars
from tests.support.object_store.azurite import ACCOUNT, KEY, AzureServer

_POM = Path(__file__).with_name("abfs_jars") / "pom.xml"


def jars() -> Path | str:
    return fetched_jars(_POM, "spark-abfs-jars")


def session_conf(found: Path, azure: AzureServer) -> dict[str, str]:
    """What a user of a flat account sets for ABFS, and how to reach this server, which has the blob endpoint alone."""
    azure_conf = {f"account.key.{ACCOUNT}.{endpoint}.core.windows.net": KEY for endpoint in ("dfs", "blob")} | {
        "account.hns.enabled": "false",
        "fns.account.service.type": "BLOB",
        "abfs.endpoint": f"127.0.0.1:{azure.port}",
        "always.use.https": "false",
        "networking.library": "JDK_HTTP_URL_CONNECTION",  # the other one wants a TLS socket whatever is asked
        "createRemoteFileSystemDuringInitialization": "true",
        "io.retry.max.retries": "2",
    }
    return {
        "spark.jars": ",".join(map(str, sorted(found.glob("*.jar")))),
        **{f"spark.hadoop.fs.azure.{name}": value for name, value in azure_conf.items()},
    }
