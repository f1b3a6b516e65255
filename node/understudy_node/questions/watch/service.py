"""Watches at a node: of the keys of its replicas, for its own readers and for routers."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence

from fastapi import APIRouter, Request, Response
from prometheus_client.core import CounterMetricFamily, Metric

from understudy_node.questions.lookup.hop_calls import StoreHop, read_hop, reader_asked
from understudy_node.questions.lookup.hop_lookups import MISPLACED
from understudy_node.questions.lookup.reads import Reads
from understudy_node.questions.watch.feeds import WatchFeeds
from understudy_node.questions.watch.hub import WatchHub
from understudy_node.questions.watch.resumed import CatchingUp
from understudy_node.questions.watch.watcher import NodeSource, WatcherParts
from understudy_node.stores.lookup import StoreReader
from understudy_shared.http.edge import Scope
from understudy_shared.http.problems import ProblemError
from understudy_shared.questions.scan.service import Scans
from understudy_shared.questions.watch.events import MEDIA_TYPE
from understudy_shared.questions.watch.hop import (
    KEYS_PATH,
    MISSED_PATH,
    OPEN_PATH,
    WatchKey,
    decode_feed_hop,
    decode_feed_keys,
    decode_missed_hop,
)
from understudy_shared.questions.watch.requests import WatchedStore
from understudy_shared.questions.watch.sending import Begun, Events, WatchResponse
from understudy_shared.questions.watch.service import Watches, WatchQuestion, grants_of
from understudy_shared.questions.watch.streams import WatchStream, WatchStreams
from understudy_shared.questions.watch.watcher import Watcher
from understudy_shared.reads.bounds import Bound
from understudy_shared.server.app import json_response


class NodeWatchStreams(WatchStreams):
    """The watches of a node, with what was read for them."""

    def __init__(self, max_watchers: int, hub: WatchHub) -> None:
        super().__init__(max_watchers)
        self.catching_up = CatchingUp()
        self._hub = hub

    def metrics(self) -> Iterator[Metric]:
        yield from super().metrics()
        yield CounterMetricFamily(
            "understudy_watch_keys_read", "Keys that were read because they are watched", self._hub.reads
        )
        yield CounterMetricFamily(
            "understudy_watch_passes",
            "Passes over older versions for watchers that went on behind one",
            self.catching_up.passes,
        )


class NodeWatches(Watches):
    """The watches of the keys of this node's replicas."""

    def __init__(self, reads: Reads, streams: NodeWatchStreams, hub: WatchHub, scans: Scans) -> None:
        super().__init__(reads.requests, streams, scans)
        self._reads = reads
        self._shared = WatcherParts(hub, streams, streams.catching_up, reads.learn)
        self.feeds = WatchFeeds(self._shared)

    @property
    def application_id(self) -> str:
        return self._reads.application_id

    def has_store(self, name: str) -> bool:
        return self._reads.has_store(name)

    def store(self, name: str) -> WatchedStore:
        reader = self._reads.reader(name)
        return WatchedStore(reader.store.name, reader.store.codec, reader.partitions, reader.max_key_bytes)

    def bound(self, store: WatchedStore, params: Mapping[str, object]) -> Bound:
        return self._reads.bound(self._reads.reader(store.name), params)

    def events(self, name: str, asked: WatchQuestion, stream: WatchStream) -> Events:
        source = NodeSource(self._shared, self._reads.reader(name))
        return Watcher(source, self.streams, asked, stream).events()

    def reader(self, hop: StoreHop) -> StoreReader:
        """Return the reader that a router asks for. Raises the problem of one that is not exactly that."""
        return reader_asked(self._reads, hop)


def watch_hop_routes(watches: NodeWatches) -> APIRouter:
    """Make the calls by which routers watch keys."""
    routes = APIRouter()

    @routes.post(OPEN_PATH, response_class=WatchResponse)
    async def feed(request: Request) -> Response:
        """Send the events of keys of a partition that are added while the stream is open."""
        hop = await read_hop(request, decode_feed_hop)

        def begin(scope: Scope) -> Awaitable[Begun]:
            return watches.feeds.begin(watches.reader(hop.of), hop, grants_of(scope))

        return WatchResponse(watches.streams, begin)

    @routes.post(KEYS_PATH)
    async def feed_keys(request: Request) -> Response:
        """Add keys to a feed, and drop others."""
        hop = await read_hop(request, decode_feed_keys)
        await watches.feeds.change(hop)
        return json_response({})

    @routes.post(MISSED_PATH)
    async def missed(request: Request) -> Response:
        """Send what changed of some keys behind a position."""
        hop = await read_hop(request, decode_missed_hop)
        reader = watches.reader(hop.of)
        require_placed(reader, hop.keys)
        return Response(await watches.feeds.missed(reader, hop), media_type=MEDIA_TYPE)

    return routes


def require_placed(reader: StoreReader, keys: Sequence[WatchKey]) -> None:
    """Raise the problem of keys that are not of the partitions that a router says."""
    may_hold = reader.store.codec.may_hold
    if not all(may_hold(key.partition, key.row, reader.partitions) for key in keys):
        raise ProblemError(MISPLACED)
