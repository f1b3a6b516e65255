"""Reads of several stores at a node, of the partitions that it holds."""

from __future__ import annotations

from collections.abc import Mapping

from understudy_node.http.reads import Reads
from understudy_node.http.scan_versions import first_version
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.position import Position
from understudy_shared.server.lookups import LookupsFirst
from understudy_shared.server.several_reads import SeveralStores


class NodeStores(SeveralStores):
    """The stores of this node's replicas."""

    def __init__(self, lookups: LookupsFirst, reads: Reads) -> None:
        super().__init__(lookups)
        self._reads = reads

    def bound(self, store: str, params: Mapping[str, object]) -> Bound:
        return self._reads.bound(self._reads.reader(store), params)

    async def position(self, store: str, bound: Bound) -> Position:
        reader = self._reads.reader(store)
        bound = await self._reads.resolved(bound)
        if bound.min_position is not None:
            await self._reads.learn(bound.min_position)
        version = await first_version(reader, sorted(reader.replicas), bound)
        return Position(reader.application_id, reader.lineage, version.number, version.committed_at_us)
