"""A checkpoint behind an fsspec URL: HDFS, WebHDFS, memory, ... Object stores are read by `object_store.py`.

Rule: every backend keeps the contract of `files.CheckpointFiles`; listings are never cached, credentials never printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import fsspec

from understudy_node.checkpoint.files import (
    DEFAULT_MAX_READ_BYTES,
    DISK_FULL,
    CheckpointFiles,
    FetchMethod,
    FileStat,
    arriving_file,
    hashed_tag,
    mtime_ns,
    refuse_escape,
    storage_error,
    too_large_to_read,
    vanished,
)
from understudy_shared.base.errors import CheckpointError, UnderstudyError
from understudy_shared.base.masking import masked_location

# How backends name the time of the last write, in order of preference.
_TIME_FIELDS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_TAG_FIELDS = ("ETag", "etag", "generation", "md5Hash", "ino")


OPEN_MS = 30_000
"""The deadline for opening a storage: a library that is imported and a connection or two."""


class FsspecFiles(CheckpointFiles):
    """A checkpoint on any file system that fsspec knows. `options` go to the backend (endpoint, credentials, ...)."""

    def __init__(self, url: str, **options: object) -> None:
        self._url = masked_location(url.rstrip("/"))
        self._given = url
        try:
            filesystem, root = self._open(options)
        except UnderstudyError:
            raise
        except ImportError as error:
            raise CheckpointError(
                f"The library for this storage is not installed: {error}",
                where=self._url,
                fix="Install it beside Understudy; hdfs:// needs pyarrow and a JVM with Hadoop, webhdfs:// neither",
            ) from error
        except Exception as error:  # backends raise classes of their own
            raise storage_error("Cannot open the checkpoint's storage", self._url, error, url=url) from None
        self._filesystem: Any = filesystem
        self._root: str = root.rstrip("/")

    def __repr__(self) -> str:
        return f"FsspecFiles({self._url!r})"

    @property
    def url(self) -> str:
        """The URL without user and password."""
        return self._url

    def stat(self, path: str) -> FileStat | None:
        full = self._full(path)
        with self._translated("Cannot stat", path):
            try:
                info: Mapping[str, Any] = self._filesystem.info(full)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return FileStat(_mtime_ns(info), int(info.get("size") or 0), _content_tag(info))

    def list(self, path: str) -> list[str] | None:
        full = self._full(path).rstrip("/")
        with self._translated("Cannot list", path):
            try:
                entries: list[Mapping[str, Any]] = self._filesystem.ls(full, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return None
        names = [str(entry["name"]).rstrip("/") for entry in entries]
        if (
            len(names) == 1
            and _same_path(names[0], full)
            and entries[0].get("type") == "file"
            and entries[0].get("size")
        ):
            return None  # a file, not a directory
        # An empty object that is called like its directory marks it, there and in the directory above.
        return [*dict.fromkeys(name.rpartition("/")[2] for name in names if not _same_path(name, full))]

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        """Make one request, of at most one byte more than allowed."""
        full = self._full(path)
        with self._translated("Cannot read", path):
            try:
                data = bytes(self._filesystem.cat_file(full, start=0, end=max_bytes + 1))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise vanished(self._where(path)) from error
            except Exception:
                found = self.stat(path)
                if found is None or found.size:
                    raise
                data = b""  # S3 refuses a range of an empty object
        if len(data) > max_bytes:
            raise too_large_to_read(self._where(path), len(data), max_bytes)
        return data

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        """Download the file, and compare its size with what the storage reports."""
        full = self._full(path)
        found = self.stat(path)
        if found is None:
            raise vanished(self._where(path))
        with arriving_file(destination) as arriving:
            try:
                self._filesystem.get_file(full, str(arriving))
            except Exception as error:
                if isinstance(error, OSError) and error.errno in DISK_FULL:
                    raise
                if self.stat(path) is None:
                    raise vanished(self._where(path)) from error
                raise storage_error("Cannot download", self._where(path), error, url=self._given) from error
            received = arriving.stat().st_size
            if received != found.size:
                raise CheckpointError(
                    f"The download ended after {received} of {found.size} bytes",
                    where=self._where(path),
                    fix="Try again; if it persists, check the connection to the storage",
                )
        return "download"

    def _open(self, options: dict[str, object]) -> tuple[Any, str]:
        """Open the file system in a thread, because some ask the storage as they open and know no deadline."""
        outcome: SimpleQueue[tuple[Any, str] | Exception] = SimpleQueue()

        def opened() -> None:
            try:
                outcome.put(fsspec.core.url_to_fs(self._given, **{"use_listings_cache": False, **options}))
            except Exception as error:
                outcome.put(error)

        # Its end does not wait for a thread that hangs: the thread is no executor's.
        Thread(target=opened, name="open-storage", daemon=True).start()
        try:
            found = outcome.get(timeout=OPEN_MS / 1000)
        except Empty:
            raise CheckpointError(
                f"The checkpoint's storage did not open within {OPEN_MS / 1000:g} s",
                where=self._url,
                fix="Check that the node can reach it, and where the storage's library looks for credentials",
            ) from None
        if isinstance(found, Exception):
            raise found
        return found

    def _full(self, path: str) -> str:
        refuse_escape(path)
        full = f"{self._root}/{path}" if path else self._root
        self._filesystem.invalidate_cache(full)
        return full

    def _where(self, path: str) -> str:
        return f"{self._url}/{path}"

    @contextmanager
    def _translated(self, what: str, path: str) -> Iterator[None]:
        """Convert every error of a backend, which has a class of its own, to a `CheckpointError`."""
        try:
            yield
        except UnderstudyError:
            raise
        except Exception as error:
            raise storage_error(what, self._where(path), error, url=self._given) from error


def _same_path(first: str, second: str) -> bool:
    return first.strip("/") == second.strip("/")


def _mtime_ns(info: Mapping[str, Any]) -> int:
    for field in _TIME_FIELDS:
        value = info.get(field)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            return mtime_ns(value if value.tzinfo else value.replace(tzinfo=UTC))
        if isinstance(value, (int, float)):
            return round(value * 1_000_000) * 1_000
    return int(info.get("modificationTime") or 0) * 1_000_000  # WebHDFS, in milliseconds


def _content_tag(info: Mapping[str, Any]) -> int:
    return hashed_tag(next((str(value) for field in _TAG_FIELDS if (value := info.get(field))), None))
