"""The changes of a store as a reader reads them: a whole stream in memory."""

from __future__ import annotations

from typing import Any

from tests.support.cluster.served_node import Served
from tests.support.oracle.exported import Exported, received
from tests.support.oracle.scanned import scan_target


class Changed:
    """A stream of changes, and what its lines say."""

    def __init__(self, stream: Exported) -> None:
        self.stream = stream
        self.head: dict[str, Any] = stream.lines[0]["changes"]
        self.changes: list[dict[str, Any]] = [line["change"] for line in stream.lines if "change" in line]
        self.versions: list[dict[str, Any]] = [line["version"] for line in stream.lines if "version" in line]

    @property
    def end(self) -> dict[str, Any]:
        """What the last line says of a stream that is whole and in order."""
        assert self.stream.is_whole
        seen: list[dict[str, Any]] = []
        version = self.head["from"]
        for line in self.stream.lines[1:-1]:
            if "change" in line:
                assert line["change"]["version"] == version
                seen.append(line["change"])
            else:
                assert (line["version"]["version"], line["version"]["changes"]) == (version, len(seen))
                assert [each["partition"] for each in seen] == sorted(each["partition"] for each in seen)
                version, seen = version + 1, []
        assert version == self.head["to"] + 1
        end: dict[str, Any] = self.stream.lines[-1]["end"]
        assert end == {
            "changes": len(self.changes),
            "from": self.head["from"],
            "to": self.head["to"],
            "partitions": len(self.head["partitions"]),
        }
        return end

    def of(self, version: int) -> list[dict[str, Any]]:
        return [each for each in self.changes if each["version"] == version]


def changes_of(
    served: Served, first: int, last: int | None = None, *, store: str = "op0", **members: object
) -> Changed:
    """The stream of some versions; `prefix` is given as it is in JSON."""
    connection = served._connection()
    try:
        connection.request("GET", changes_target(first, last, store=store, **members), headers=served._shown())
        return Changed(received(connection.getresponse()))
    finally:
        connection.close()


def changes_target(first: int, last: int | None = None, *, store: str = "op0", **members: object) -> str:
    """The target of the question for some versions."""
    versions: dict[str, object] = {"from": first} if last is None else {"from": first, "to": last}
    return scan_target(store, "changes", **{**versions, **members})
