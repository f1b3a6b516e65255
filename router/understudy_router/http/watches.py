"""Watches at a router: the events come from feeds of the nodes that hold the keys."""

from __future__ import annotations

from collections.abc import Mapping

from understudy_router.forwarding.context import ReadContext
from understudy_router.forwarding.watch_feeds import FeedSource, WatchFeeds
from understudy_router.http.reads import Reads
from understudy_router.router import Router
from understudy_shared.reads.bounds import Bound
from understudy_shared.server.scans import Scans
from understudy_shared.server.watch_requests import WatchedStore
from understudy_shared.server.watch_sending import Events
from understudy_shared.server.watch_streams import WatchStream, WatchStreams
from understudy_shared.server.watcher import Watcher
from understudy_shared.server.watches import Watches, WatchQuestion


class RouterWatches(Watches):
    """The watches of the keys of the application, by asking its nodes."""

    def __init__(self, reads: Reads, streams: WatchStreams, scans: Scans, context: ReadContext, router: Router) -> None:
        super().__init__(reads.requests, streams, scans)
        self._reads, self._router = reads, router
        self.feeds = WatchFeeds(context, router.nodes)

    @property
    def application_id(self) -> str:
        return self._router.settings.application_id

    def has_store(self, name: str) -> bool:
        return self._reads.has_store(name)

    def store(self, name: str) -> WatchedStore:
        route = self._reads.route(name)
        return WatchedStore(route.name, route.codec, route.partitions, self._reads.max_key_bytes)

    def bound(self, store: WatchedStore, params: Mapping[str, object]) -> Bound:
        return self._reads.bound(self._reads.route(store.name), params)

    def events(self, name: str, asked: WatchQuestion, stream: WatchStream) -> Events:
        return Watcher(FeedSource(self.feeds, lambda: self._reads.route(name)), self.streams, asked, stream).events()
