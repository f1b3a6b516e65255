"""Looks at a checkpoint once and says what is there, what can be served, and what to change: `understudy doctor`.

It reads what `understudy serve` reads at its start, and nothing of the state itself. `findings_of` decides and is pure.
"""

from __future__ import annotations

import time
from typing import Any

from understudy_node.checkpoint.description import CheckpointDescription, describe
from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.checkpoint.support import SUPPORTED_OPERATORS
from understudy_node.follow.history import CommitHistory
from understudy_node.storage_checks import storage_checks
from understudy_node.stores.stores import served_stores
from understudy_shared.spark.times import utc_text

Finding = dict[str, str]

CLOCK_TOLERANCE_S = 5.0
"""A commit may come from a clock that is so much ahead; beyond it time lag is worth nothing."""

FEW_VERSIONS = 10
"""Spark keeps 100 by default. A node that restores while the query goes on needs some."""


def examine(checkpoint: str) -> dict[str, Any]:
    """Report on a checkpoint. Raises UnderstudyError where it cannot be read, and its storage was not checked."""
    files = open_checkpoint_files(checkpoint)
    if isinstance(files, LocalFiles):
        return _examined(files)
    checks = storage_checks(files, getattr(files, "endpoint", ""))  # HDFS tells no time
    if any(each["state"] == "fail" for each in checks):
        return {"checkpoint": files.url, "checks": checks, "findings": []}
    return {**_examined(files), "checks": checks}


def _examined(files: CheckpointFiles) -> dict[str, Any]:
    description = describe(files)
    last = description.last_commit
    committed_ns = None if last is None else CommitHistory(files).commit_time_ns(last.batch_id + 1)
    now_s = time.time()
    properties = description.properties
    return {
        "checkpoint": files.url,
        "query_id": description.query_id,
        "provider": None if properties is None else properties.provider,
        "format": description.format_version,
        "changelogs": description.changelogs,
        "codec": None if properties is None else properties.codec,
        "versions": description.retained_versions,
        "committed_at": None if committed_ns is None else utc_text(committed_ns // 1000),
        "operators": [_operator(description, each.operator_id) for each in description.operators],
        "findings": findings_of(description, age_s=None if committed_ns is None else now_s - committed_ns / 1e9),
    }


def findings_of(description: CheckpointDescription, *, age_s: float | None) -> list[Finding]:
    """List what is wrong (`wrong`) and what could be better (`hint`). `age_s`: how long ago the last commit was,
    here.
    """
    found = []
    for operator in description.operators:
        for store, reason in operator.refusals:
            name = store or f"op{operator.operator_id} ({operator.operator_name})"
            found.append(_finding("wrong", f"{name} is not served: {reason.what}", reason.fix))
    if description.last_commit is None:
        found.append(_finding("wrong", "nothing was committed yet", "Start the query, or wait for its first batch"))
    if age_s is not None and age_s < -CLOCK_TOLERANCE_S:
        found.append(
            _finding(
                "wrong", f"the last commit is {-age_s:.0f} s in the future", "Set the clocks of both machines by NTP"
            )
        )
    return found + _hints(description)


def _hints(description: CheckpointDescription) -> list[Finding]:
    found = []
    properties, versions = description.properties, description.retained_versions
    conf = "spark.sql.streaming.stateStore"
    if properties is not None and properties.provider == "hdfs":
        fix = f"Set {conf}.providerClass to RocksDBStateStoreProvider for a new checkpoint (docs/pipeline.md)"
        found.append(_finding("hint", "the HDFS-backed provider keeps all state in memory, also in a node", fix))
    elif properties is not None and description.changelogs is False:
        fix = f"Set {conf}.rocksdb.changelogCheckpointing.enabled=true and restart the query"
        found.append(_finding("hint", "RocksDB writes snapshots without changelogs: commits take longer to see", fix))
    if properties is not None and properties.provider == "rocksdb" and description.format_version == 1:
        fix = f"Set {conf}.checkpointFormatVersion=2 for a new checkpoint, with Spark 4.1 or later"
        found.append(_finding("hint", "checkpoint format v1 does not tell files of failed attempts apart", fix))
    if versions is not None and versions[1] > 1 and versions[1] - versions[0] + 1 < min(FEW_VERSIONS, versions[1]):
        fix = "Raise spark.sql.streaming.minBatchesToRetain"
        found.append(_finding("hint", f"only {versions[1] - versions[0] + 1} versions are kept", fix))
    return found


def _operator(description: CheckpointDescription, operator_id: int) -> dict[str, Any]:
    (operator,) = (each for each in description.operators if each.operator_id == operator_id)
    stores = [str(name) for name, store in served_stores(description, {}).items() if store.operator_id == operator_id]
    support = SUPPORTED_OPERATORS.get(operator.operator_name)
    return {
        "operator_id": operator_id,
        "operator": operator.operator_name,
        "meaning": None if support is None else support.meaning,
        "partitions": operator.partitions,
        "state_format": operator.state_format,
        "stores": stores,
    }


def _finding(state: str, what: str, fix: str) -> Finding:
    return {"state": state, "what": what, "fix": fix}
