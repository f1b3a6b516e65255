"""Stores as files of DuckDB, wherever it takes a file system: `FROM read_parquet('state://aircraft.parquet')`.

A statement reads the newest version, whole: DuckDB's own reader of URLs asks for ranges, which need a version in the
URL. A file is kept for a second, so that all reads of one statement are of one version.
"""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.request import Request, urlopen

from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

KEPT_S = 1.0


class StateFiles(AbstractFileSystem):  # type: ignore[misc]
    """The files `<store>.parquet`, `.csv` and `.ndjson` of a service. A question may follow: `?where=flights>100`."""

    protocol = "state"

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> None:
        super().__init__()
        self._url, self._headers, self._timeout_s = url, dict(headers or {}), timeout_s
        self._kept: dict[str, tuple[float, bytes]] = {}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        return io.BytesIO(self._read(path)[1])

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self._read(path)[1]), "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        return [path]  # its question mark is one

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._read(path)[0], UTC)

    def _read(self, path: str) -> tuple[float, bytes]:
        """Return when a file was read, and the file."""
        name = str(self._strip_protocol(path))
        found = self._kept.get(name)
        if found is None or time.time() - found[0] > KEPT_S:
            self._kept = {each: kept for each, kept in self._kept.items() if time.time() - kept[0] <= KEPT_S}
            request = Request(f"{self._url}/v1/stores/{name}", headers=self._headers)
            with urlopen(request, timeout=self._timeout_s) as reply:
                found = self._kept[name] = (time.time(), reply.read())
        return found
