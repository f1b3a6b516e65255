"""Examines a checkpoint and its storage once, for `understudy doctor`: what is there, what can be served, what to
change.

It reads what `understudy serve` reads at its start, and lists the state files; `findings_of` decides and is pure. For a
URL it first checks the storage step by step: each ends as ok, warn or fail, with what to do, and steps that depend on a
failed one are skipped. The functions `*_check` decide and are pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from understudy_node.checkpoint.description import CheckpointDescription, describe
from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_node.checkpoint.logs import MAX_LOG_BYTES, batch_ids, parse_query_id
from understudy_node.checkpoint.opening import open_checkpoint_files
from understudy_node.checkpoint.operators import SUPPORTED_OPERATORS
from understudy_node.follow.history import CommitHistory
from understudy_node.generations import layout_of, places_of
from understudy_node.replica.chosen_files import missing_of
from understudy_node.replica.replica_context import StorePlace
from understudy_node.stores.stores import StoreAlias, named_operators, read_aliases, served_stores
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import ApplicationId, TaskId
from understudy_shared.spark.temporal import utc_text

Aliases = Mapping[str, StoreAlias]
Finding = dict[str, str]

CLOCK_TOLERANCE_S = 5.0
"""Tolerated clock skew of a commit's time; beyond it time lag is meaningless."""

PARALLEL = 8
"""Number of stores examined at once."""

FEW_VERSIONS = 10
"""Spark keeps 100 by default. A node that restores while the query runs needs some."""


T = TypeVar("T")

Check = dict[str, str]

SKEW_WARN_S = 5.0
SKEW_FAIL_S = 600.0
"""S3 and Azure refuse what is signed by a clock that is 15 minutes off."""

SLOW_LIST_MS = 1_000.0
OLD_COMMIT_S = 3_600.0

_TIMEOUT = httpx.Timeout(5.0)
_NTP = "Set the clock of this machine by NTP"


def storage_checks(files: CheckpointFiles, endpoint: str) -> list[Check]:
    """Return the checks of a checkpoint in remote storage. `endpoint` is where it is asked, empty if not known."""
    checks = [_clock(endpoint)] if endpoint else []
    return checks + list(_checks_of_files(files))


def clock_check(skew_s: float | None, host: str) -> Check:
    """Judge how far this machine's clock is ahead of the store's; None if the store did not say the time."""
    if skew_s is None:
        return _check("clock", "warn", f"{host} told no time, so the clocks were not compared", _NTP)
    ahead = "ahead of" if skew_s > 0 else "behind"
    state = "ok" if abs(skew_s) <= SKEW_WARN_S else "warn" if abs(skew_s) <= SKEW_FAIL_S else "fail"
    return _check(
        "clock",
        state,
        f"this machine's clock is {abs(skew_s):.0f} s {ahead} {host}'s",
        "" if state == "ok" else f"{_NTP}: stores refuse requests that are signed by a wrong clock",
    )


def list_check(names: list[str] | None, took_ms: float) -> Check:
    if names is None:
        fix = "Check the path: it is the query's checkpointLocation, and names are case-sensitive"
        return _check("list", "fail", "the listing worked, and there is nothing at this path", fix)
    what = f"{len(names)} names were listed in {took_ms:.0f} ms"
    if took_ms > SLOW_LIST_MS:
        return _check("list", "warn", what, "Run nodes in the store's region; restores list once for each task")
    return _check("list", "ok", what)


def commit_check(version: int, age_s: float | None) -> Check:
    """Judge the newest commit. `age_s` is by this machine's clock, None if the storage gives no time."""
    if age_s is None:
        return _check("commit", "ok", f"version {version} is committed; the storage does not say when")
    what = f"version {version} was committed {max(0.0, age_s):.0f} s ago"
    if age_s > OLD_COMMIT_S:
        return _check("commit", "warn", what, "If that is longer than a batch takes, check that the query runs")
    return _check("commit", "ok", what)


def _checks_of_files(files: CheckpointFiles) -> Iterator[Check]:
    began_s = time.monotonic()
    names, refused = _tried(lambda: files.list(""), "store")
    took_ms = (time.monotonic() - began_s) * 1000
    if refused:
        of_identity = any(word in refused["what"] for word in ("credentials", "identit"))
        yield {**refused, "check": "credentials"} if of_identity else refused
        return
    yield _check("credentials", "ok", "the store takes them")
    yield list_check(names, took_ms)
    if names is None:
        return
    if "metadata" not in names:
        fix = "Point at the query's checkpointLocation, and start the query if it has never run"
        yield _check("lineage", "fail", f"there is no file `metadata` among {len(names)} names", fix)
        return
    metadata, refused = _tried(lambda: files.read("metadata", MAX_LOG_BYTES), "read")
    if refused or metadata is None:
        yield from [refused] if refused else []
        return
    yield _check("read", "ok", "a file was read; nodes never write, and need no right to")
    query_id, refused = _tried(lambda: parse_query_id(metadata), "lineage")
    yield refused or _check("lineage", "ok", f"the query {query_id}")
    yield from _commit(files)


def _commit(files: CheckpointFiles) -> Iterator[Check]:
    """Ask for the newest commit, and for the one after it, which must be reported as absent."""
    batches, refused = _tried(lambda: batch_ids(files.list("commits") or []), "commit")
    if refused or not batches:
        yield refused or _check("commit", "fail", "nothing was committed yet", "Start the query, or wait for its batch")
        return
    version = max(batches) + 1
    stats, refused = _tried(lambda: files.stats([f"commits/{version - 1}", f"commits/{version}"]), "commit")
    if refused or stats is None:
        yield from [refused] if refused else []
        return
    newest = stats[0]
    age_s = time.time() - newest.mtime_ns / 1e9 if newest is not None and newest.mtime_ns else None
    yield commit_check(version, age_s)


def _tried(call: Callable[[], T], name: str) -> tuple[T | None, Check | None]:
    """Return the result of a call; if it raises, return a failed check."""
    try:
        return call(), None
    except UnderstudyError as error:
        return None, _check(name, "fail", error.what, error.fix)


def _clock(endpoint: str) -> Check:
    """Ask the store for the time, without credentials: the Date of any reply has it."""
    parts = urlsplit(endpoint)
    host = parts.hostname or "the store"
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
    before_s = time.time()
    try:
        date = httpx.head(address, timeout=_TIMEOUT, trust_env=True).headers.get("date")
    except (httpx.HTTPError, httpx.InvalidURL):  # later checks report what is wrong with the connection
        return clock_check(None, host)
    middle_s = (before_s + time.time()) / 2
    try:
        store_s = parsedate_to_datetime(date or "").timestamp() + 0.5  # whole seconds, cut off
    except ValueError:
        return clock_check(None, host)
    return clock_check(middle_s - store_s, host)


def _check(name: str, state: str, what: str, fix: str = "") -> Check:
    return {"check": name, "state": state, "what": what, "fix": fix}


def examine(checkpoint: str, alias_file: Path | None = None) -> dict[str, Any]:
    """Report on a checkpoint as a node with this alias file would serve it. Raises UnderstudyError where it cannot be
    read, and its storage was not checked.
    """
    aliases = {} if alias_file is None else read_aliases(alias_file)
    files = open_checkpoint_files(checkpoint)
    if isinstance(files, LocalFiles):
        return _examined(files, aliases)
    checks = storage_checks(files, getattr(files, "endpoint", ""))  # HDFS tells no time
    if any(each["state"] == "fail" for each in checks):
        return {"checkpoint": files.url, "checks": checks, "findings": []}
    return {**_examined(files, aliases), "checks": checks}


def _examined(files: CheckpointFiles, aliases: Aliases) -> dict[str, Any]:
    description = describe(files, named_operators(aliases))
    last = description.last_commit
    committed_ns = None if last is None else CommitHistory(files).commit_time_ns(last.batch_id + 1)
    now_s = time.time()
    age_s = None if committed_ns is None else now_s - committed_ns / 1e9
    properties = description.properties
    return {
        "checkpoint": files.url,
        "query_id": description.query_id,
        "provider": None if properties is None else properties.provider,
        "format": description.format_version,
        "changelogs": description.changelogs,
        "codec": None if properties is None else properties.codec,
        "placement": None if properties is None else properties.placement,
        "versions": description.retained_versions,
        "committed_at": None if committed_ns is None else utc_text(committed_ns // 1000),
        "operators": [_operator(description, each.operator_id, aliases) for each in description.operators],
        "findings": findings_of(description, aliases, age_s=age_s) + missing_files(files, description),
    }


def restart_report(files: CheckpointFiles, description: CheckpointDescription) -> dict[str, Any]:
    """Return `GET /admin/v1/checkpoint` of a node: whether Spark could restart from the files that are there now."""
    last = description.last_commit
    return {
        "checkpoint": files.url,
        "version": 0 if last is None else last.batch_id + 1,
        "findings": missing_files(files, description),
    }


def missing_files(files: CheckpointFiles, description: CheckpointDescription) -> list[Finding]:
    """List what is missing to rebuild the newest state from the files: Spark cannot restart without it."""
    if description.last_commit is None:
        return []
    target = description.last_commit.batch_id + 1
    history = CommitHistory(files)
    record = history.record(target)
    if record is None:
        return []
    layout = layout_of(record)

    def look(place: StorePlace) -> list[Finding]:
        try:
            return [_unrebuilt(error) for error in missing_of(place, files, history, target)]
        except UnderstudyError as error:
            return [_unrebuilt(error)]

    tasks = (
        (operator, TaskId(ApplicationId(""), operator.operator_id, partition))
        for operator in description.operators
        for partition in range(operator.partitions if operator.served else 0)
    )
    places = [place for operator, task in tasks for place in places_of(operator, task, description.query_id, layout)]
    with ThreadPoolExecutor(PARALLEL) as pool:  # each place is a few round trips to a store
        return [finding for found in pool.map(look, places) for finding in found]


def _unrebuilt(error: UnderstudyError) -> Finding:
    what = f"Spark cannot restart from these files: {error.what} ({error.where})"
    return _finding("wrong", what, error.fix)


def findings_of(description: CheckpointDescription, aliases: Aliases, *, age_s: float | None) -> list[Finding]:
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
    return found + _hints(description, aliases)


def _hints(description: CheckpointDescription, aliases: Aliases) -> list[Finding]:
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
    for each in description.operators:
        if each.inferred_from:
            name = f"op{each.operator_id} is taken for {each.operator_name}"
            what = f"{name}: {each.inferred_from}. Spark 3 does not record operators"
            fix = "Compare it with the query; continued on Spark 4, the query records it"
            found.append(_finding("hint", what, fix))
    operators = {each.operator_id: each.operator_name for each in description.operators}
    for number, named in named_operators(aliases).items():
        if operators.get(number, named) != named:
            what = (
                f"the alias file names {named} for op{number}, which is {operators[number]}: the file is not followed"
            )
            found.append(_finding("hint", what, f"Remove its line operator below [op{number}]"))
    scattered = [str(name) for name, store in served_stores(description, aliases).items() if store.codec.is_scattered]
    if scattered:
        what = (
            f"Spark may have placed the keys of {', '.join(scattered)} by a part of them: the query began before 3.2.2"
            " or 3.3 (SPARK-38204). Each read of a key asks all partitions, and all must answer"
        )
        fix = "Start the query on a new checkpoint where keys are looked up often (docs/troubleshooting.md)"
        found.append(_finding("hint", what, fix))
    if versions is not None and versions[1] > 1 and versions[1] - versions[0] + 1 < min(FEW_VERSIONS, versions[1]):
        fix = "Raise spark.sql.streaming.minBatchesToRetain"
        found.append(_finding("hint", f"only {versions[1] - versions[0] + 1} versions are kept", fix))
    return found


def _operator(description: CheckpointDescription, operator_id: int, aliases: Aliases) -> dict[str, Any]:
    (operator,) = (each for each in description.operators if each.operator_id == operator_id)
    stores = [
        str(name) for name, store in served_stores(description, aliases).items() if store.operator_id == operator_id
    ]
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
