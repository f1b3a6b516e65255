"""Watches at a router: the events come from feeds of the nodes that hold the keys."""

from __future__ import annotations

from collections.abc import Mapping

from understudy_router.questions.lookup.reads import Reads
from understudy_router.questions.scan.forward import ScanForwarder
from understudy_router.questions.watch.feeds import FeedSource, WatchFeeds
from understudy_shared.questions.scan.service import Scans
from understudy_shared.questions.watch.requests import WatchedStore
from understudy_shared.questions.watch.sending import Events
from understudy_shared.questions.watch.service import Watches, WatchQuestion
from understudy_shared.questions.watch.streams import WatchStream, WatchStreams
from understudy_shared.questions.watch.watcher import Watcher
from understudy_shared.reads.bounds import Bound


class RouterWatches(Watches):
    """The watches of the keys of the application, by asking its nodes."""

    def __init__(
        self, reads: Reads, streams: WatchStreams, scans: Scans, forwarder: ScanForwarder, application_id: str
    ) -> None:
        super().__init__(reads.requests, streams, scans)
        self._reads = reads
        self.feeds = WatchFeeds(forwarder.context, forwarder.nodes)
        self._application_id = application_id

    @property
    def application_id(self) -> str:
        return self._application_id

    def has_store(self, name: str) -> bool:
        return self._reads.has_store(name)

    def store(self, name: str) -> WatchedStore:
        route = self._reads.route(name)
        return WatchedStore(route.name, route.codec, route.partitions, self._reads.max_key_bytes)

    def bound(self, store: WatchedStore, params: Mapping[str, object]) -> Bound:
        return self._reads.bound(self._reads.route(store.name), params)

    def events(self, name: str, asked: WatchQuestion, stream: WatchStream) -> Events:
        return Watcher(FeedSource(self.feeds, lambda: self._reads.route(name)), self.streams, asked, stream).events()
