"""A client of HDFS that notes what it is asked for, as `FaultyProxy` does for stores that are asked by HTTP."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.object_store.faulty_proxy import Asked, RequestLog

from understudy_node.checkpoint.files import FileStat
from understudy_node.checkpoint.hdfs import HadoopClient, HadoopFiles


class CountedHdfs(RequestLog, HadoopClient):
    """A client in front of another. To read is to open, at the NameNode, and to read from a DataNode."""

    def __init__(self, client: HadoopClient) -> None:
        RequestLog.__init__(self)
        self._counted = client

    def stat(self, path: str) -> FileStat:
        self.note(Asked("STAT", path, None))
        return self._counted.stat(path)

    def names(self, path: str) -> list[str] | None:
        self.note(Asked("LIST", path, None))
        return self._counted.names(path)

    def read(self, path: str, offset: int, size: int) -> Iterator[bytes]:
        self.note(Asked("OPEN", path, None))
        return self._counted.read(path, offset, size)


def count_requests(files: HadoopFiles) -> CountedHdfs:
    """Return the count of what the reader asks from now on, as long as it keeps its connection."""
    files.client = counted = CountedHdfs(files.client)
    return counted
