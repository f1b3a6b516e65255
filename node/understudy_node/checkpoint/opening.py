"""Chooses the reader of a checkpoint's files (local disk, object store or HDFS), and checks that they are a checkpoint.

A query makes its checkpoint when it starts, which may be after the node. Only what a query that starts leaves behind is
waited for: no folder, an empty one, or Spark's folders without a batch. Everything else that is not a checkpoint is
refused at once, because it will never be one: a table, a sink, a parent folder, a folder inside a checkpoint.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from understudy_node.checkpoint.files import CheckpointFiles, LocalFiles
from understudy_node.checkpoint.logs import batch_ids
from understudy_shared.base.clock import Clock
from understudy_shared.base.errors import CheckpointError, NotACheckpointError
from understudy_shared.base.extras import install_fix
from understudy_shared.base.masking import has_login, masked_location
from understudy_shared.base.throttles import Reminder

log = logging.getLogger(__name__)

_EXTRAS = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),  # s3a and s3n are Hadoop's names of it
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "wasb", "wasbs"), "azure"),
    "hdfs": "hdfs",
}
"""The extra that reads the URLs of a scheme."""

_NAMES = {"s3": "S3", "gcs": "Google Cloud Storage", "azure": "Azure Storage", "hdfs": "HDFS"}
_SCHEME = re.compile(r"[A-Za-z0-9+.-]{1,32}")

_CONTAINS = (
    "A checkpoint contains 'metadata', 'offsets', 'commits' and 'state'; it is the checkpointLocation given to the "
    "query's writeStream"
)
_TABLE_MARKS = ("_delta_log", "_spark_metadata", "_SUCCESS", "_hudi", ".hoodie")
_TABLE_SUFFIXES = (".parquet", ".orc", ".avro", ".csv", ".json")
_INSIDE = frozenset({"commits", "offsets", "state", "sources"})
FIRST_PAUSE_S, MAX_PAUSE_S = 0.25, 5.0
"""Least and greatest time between two looks for a checkpoint that does not exist yet."""

_MAX_CHILDREN = 50
_MAX_NAMED = 3


def open_checkpoint_files(url_or_path: str | Path) -> CheckpointFiles:
    """Open the files of the checkpoint at a local path or a URL; existence is not checked here."""
    text = os.fspath(url_or_path)
    scheme, separator, rest = text.partition(":")
    if separator and scheme in {"file", "local"} and rest.startswith("/"):
        # Hadoop prints file:/x, other tools file:///x.
        return LocalFiles("/" + rest.lstrip("/"))
    if rest.startswith("//") and scheme in _EXTRAS:
        return _remote_files(text, scheme)
    if "://" in text or "::" in text:
        raise _unknown(text, scheme)
    if has_login(text):
        raise NotACheckpointError(
            "The location is neither a path nor a URL",
            where=masked_location(text),
            fix="Write a URL with ://, as in s3://bucket/path, and ./ before a relative path that has @ and : in it",
        )
    return LocalFiles(text)


def _remote_files(url: str, scheme: str) -> CheckpointFiles:
    """Open a reader that needs the library of an extra: only users of such a store install it."""
    extra = _EXTRAS[scheme]
    try:
        if extra == "hdfs":
            from understudy_node.checkpoint.hdfs import HadoopFiles, Hdfs  # noqa: PLC0415

            return HadoopFiles(Hdfs(url))
        from understudy_node.checkpoint.azure import Azure  # noqa: PLC0415
        from understudy_node.checkpoint.gcs import GCS  # noqa: PLC0415
        from understudy_node.checkpoint.object_store import ObjectStoreFiles  # noqa: PLC0415
        from understudy_node.checkpoint.s3 import S3  # noqa: PLC0415

        return ObjectStoreFiles(S3(url) if extra == "s3" else GCS(url) if extra == "gcs" else Azure(url))
    except ImportError as error:
        raise CheckpointError(
            f"The library for {_NAMES[extra]} is not installed: {error}", fix=install_fix(f"node,{extra}")
        ) from error


def _unknown(url: str, scheme: str) -> NotACheckpointError:
    if scheme in {"webhdfs", "swebhdfs"}:
        return NotACheckpointError(
            f"{scheme}:// is not read: HDFS is, by Hadoop's own protocol",
            where=masked_location(url),
            fix=f"Write hdfs://nameservice/path, or hdfs://namenode:8020/path. {install_fix('node,hdfs')}",
        )
    extras = {extra: [each for each, needed in _EXTRAS.items() if needed == extra] for extra in _NAMES}
    readable = "; ".join(f"{', '.join(names)} (extra {extra})" for extra, names in extras.items())
    named = f"{scheme}:// is" if _SCHEME.fullmatch(scheme) else "This URL's scheme is"
    return NotACheckpointError(
        f"{named} no storage that a checkpoint can be read from",
        where=masked_location(url),
        fix=f"Give a local path, or a URL of one of these: file; {readable} (docs/object-stores.md)",
    )


def wait_for_checkpoint(
    files: CheckpointFiles, clock: Clock, *, limit_ms: int | None, sleep: Callable[[float], None]
) -> None:
    """Wait until the query has made its checkpoint, or the files can never become one: opening them says why.

    Raises NotACheckpointError after `limit_ms`; None waits without a limit. Errors of the storage propagate.
    """
    began_ms = clock.monotonic_ms()
    reminder = Reminder()
    while is_awaited(files):
        now_ms = clock.monotonic_ms()
        if limit_ms is not None and now_ms - began_ms >= limit_ms:
            raise NotACheckpointError(
                f"there is no checkpoint: {what_is_there(files)}",
                where=files.url,
                fix="Give the checkpointLocation of the query's writeStream, start the query, or wait longer with "
                "--checkpoint-wait-ms",
            )
        if reminder.is_due(now_ms):
            log.warning(
                "waiting: there is no checkpoint at %s yet. Start the query, or check the path", files.url,
                extra={"action": "no-checkpoint"},
            )  # fmt: skip
        sleep(pause_s(now_ms - began_ms, is_local=isinstance(files, LocalFiles)))


def pause_s(waited_ms: float, *, is_local: bool) -> float:
    """Return the time until the next look. Remote storage is paid by the request, so there it grows with the wait."""
    return FIRST_PAUSE_S if is_local else min(MAX_PAUSE_S, max(FIRST_PAUSE_S, waited_ms / 100_000))


def what_is_there(files: CheckpointFiles) -> str:
    """Say why the directory cannot be followed as a checkpoint yet."""
    names = files.list("")
    if names is None:
        return "the folder does not exist"
    return "no batch was begun in it" if names else "the folder is empty"


def is_awaited(files: CheckpointFiles) -> bool:
    """Whether a query that starts may still make its checkpoint here."""
    if isinstance(files, LocalFiles) and Path(files.url).is_file():
        return False
    names = {name for name in files.list("") or () if not name.startswith(".")}
    return names <= {"commits", "offsets", "sources"} and not batch_ids(files.list("offsets") or ())


def require_checkpoint(files: CheckpointFiles) -> None:
    """Raise `NotACheckpointError` unless this looks like a streaming query's checkpoint."""
    names = files.list("")
    if names is None:
        raise NotACheckpointError("The path does not exist or is not a directory", where=files.url, fix=_CONTAINS)
    if {"metadata", "offsets"} <= set(names):
        return
    if not names:
        raise NotACheckpointError("The directory is empty", where=files.url, fix=_CONTAINS)
    if "metadata" in names and "commits" not in names and "state" not in names and not _looks_like_table(names):
        # Spark writes `metadata` first: the query has not run a batch yet.
        return
    raise NotACheckpointError(_what(names, files.url), where=files.url, fix=f"{_hint(files, names)}{_CONTAINS}")


def _what(names: list[str], url: str) -> str:
    if _looks_like_table(names):
        return "This is a table or a sink's output, not a checkpoint"
    if url.rstrip("/").rpartition("/")[2] in _INSIDE and batch_ids(names):
        return "This is a folder inside a checkpoint"
    return "This is not a checkpoint"


def _hint(files: CheckpointFiles, names: list[str]) -> str:
    parent, _, own_name = files.url.rstrip("/").rpartition("/")
    if own_name in _INSIDE and batch_ids(names):
        return f"Try {parent}. "
    children = [name for name in sorted(names)[:_MAX_CHILDREN] if _is_checkpoint(files, name)]
    if children:
        first = " or ".join(f"{files.url}/{child}" for child in children[:_MAX_NAMED])
        more = " (there are more)" if len(children) > _MAX_NAMED else ""
        return f"It holds {'a checkpoint' if len(children) == 1 else 'checkpoints'}: try {first}{more}. "
    return ""


def _is_checkpoint(files: CheckpointFiles, name: str) -> bool:
    try:
        return {"metadata", "offsets"} <= set(files.list(name) or ())
    except CheckpointError:
        return False  # the hint must not fail on an unreadable folder


def _looks_like_table(names: Iterable[str]) -> bool:
    return any(name in _TABLE_MARKS or name.endswith(_TABLE_SUFFIXES) for name in names)
