"""Checks the storage of a checkpoint, one thing after the other: `understudy doctor` on a URL.

Each check ends as ok, warn or fail, with what to do. What depends on a check that failed is left out. `*_check` decide
and are pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from understudy_node.checkpoint.files import CheckpointFiles
from understudy_node.checkpoint.logs import batch_ids, parse_query_id
from understudy_shared.base.errors import UnderstudyError

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
        f"this machine's clock is {abs(skew_s):.0f} s {ahead} that of {host}",
        "" if state == "ok" else f"{_NTP}: stores refuse requests that are signed by a wrong clock",
    )


def list_check(names: list[str] | None, took_ms: float) -> Check:
    """Judge the listing of the checkpoint's folder."""
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
    metadata, refused = _tried(lambda: files.read("metadata"), "read")
    if refused or metadata is None:
        yield from [refused] if refused else []
        return
    yield _check("read", "ok", "a file was read; nodes never write, and need no right to")
    query_id, refused = _tried(lambda: parse_query_id(metadata), "lineage")
    yield refused or _check("lineage", "ok", f"the query {query_id}")
    yield from _commit(files)


def _commit(files: CheckpointFiles) -> Iterator[Check]:
    """Ask for the newest commit, and for the one after it, which does not exist and must be told so."""
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
    """Return what a call returns; the check that fails if it raises."""
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
    except (httpx.HTTPError, httpx.InvalidURL):  # the checks behind this one say what is wrong with the connection
        return clock_check(None, host)
    middle_s = (before_s + time.time()) / 2
    try:
        store_s = parsedate_to_datetime(date or "").timestamp() + 0.5  # whole seconds, cut off
    except ValueError:
        return clock_check(None, host)
    return clock_check(middle_s - store_s, host)


def _check(name: str, state: str, what: str, fix: str = "") -> Check:
    return {"check": name, "state": state, "what": what, "fix": fix}
