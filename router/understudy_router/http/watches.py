"""Watches at a router: the events come from the nodes that hold the keys, and go on at others when one ends."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing

import orjson

from understudy_router.forwarding.context import ReadContext
from understudy_router.forwarding.merged_watch import MergedWatch
from understudy_router.forwarding.watch_feed import NoFeedsError
from understudy_router.forwarding.watch_feeds import FeedSource, WatchFeeds
from understudy_router.forwarding.watch_upstreams import Heard, WatchUpstreams
from understudy_router.http.reads import Reads
from understudy_router.router import Router
from understudy_shared.http.lookup_requests import longs_as_text
from understudy_shared.reads.bounds import Bound
from understudy_shared.reads.watch_events import KEEP_ALIVE, EndReason, HopEvent, KeyEvent, reset_event
from understudy_shared.server.watch_requests import WatchedStore
from understudy_shared.server.watch_sending import PIECE_BYTES, Events
from understudy_shared.server.watch_streams import WatchEndedError, WatchStream, WatchStreams
from understudy_shared.server.watcher import Watcher
from understudy_shared.server.watches import Watches, WatchQuestion


class RouterWatches(Watches):
    """The watches of the keys of the application, by asking its nodes."""

    def __init__(self, reads: Reads, streams: WatchStreams, context: ReadContext, router: Router) -> None:
        super().__init__(reads.requests, streams)
        self._reads, self._context, self._router = reads, context, router
        self.feeds = WatchFeeds(context, router.nodes, router.nodes.identity)

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

    async def events(self, name: str, asked: WatchQuestion, stream: WatchStream) -> Events:
        watcher = Watcher(FeedSource(self.feeds, lambda: self._reads.route(name)), self.streams, asked, stream)
        async with aclosing(watcher.events()) as events:
            try:
                first = await anext(events)
            except NoFeedsError:
                first = b""
            if first:
                yield first
                async for piece in events:
                    yield piece
                return
        async with aclosing(self._events_alone(name, asked, stream)) as events:
            async for piece in events:
                yield piece

    async def _events_alone(self, name: str, asked: WatchQuestion, stream: WatchStream) -> Events:
        """Yield the events of nodes of earlier releases, which are asked for each watcher."""
        merged = MergedWatch([key.partition for key in asked.keys], asked.after)
        upstreams = WatchUpstreams(
            self._context,
            self._router.nodes.identity,
            lambda: self._reads.route(name),
            asked.keys,
            asked.selection,
            merged=merged,
            stream=stream,
        )
        has_begun = False
        upstreams.start(tuple(dict.fromkeys(key.partition for key in asked.keys)))
        try:
            while True:
                stream.require_open()
                if upstreams.heard:
                    piece = self._taken(name, merged, upstreams, asked)
                    if piece:
                        has_begun = True
                        yield piece
                elif upstreams.failed is not None:
                    if not has_begun:
                        raise upstreams.failed
                    raise WatchEndedError(EndReason.UNAVAILABLE)
                elif stream.is_quiet or (upstreams.has_begun and not has_begun):
                    has_begun = True
                    yield KEEP_ALIVE
                else:
                    await stream.wait()
        finally:
            upstreams.close()

    def _taken(self, name: str, merged: MergedWatch, upstreams: WatchUpstreams, asked: WatchQuestion) -> bytes:
        """Return what was heard and is passed on, up to a size."""
        taken = bytearray()
        while upstreams.heard and len(taken) < PIECE_BYTES:
            taken += self._passed_on(name, merged, upstreams.heard.popleft(), asked)
        upstreams.took()
        return bytes(taken)

    def _passed_on(self, name: str, merged: MergedWatch, heard: Heard, asked: WatchQuestion) -> bytes:
        event = heard.event
        if event is None:
            merged.begin_anew(heard.partitions)
            return reset_event(self._reads.route(name).lineage)
        if event.at >= 0 and asked.longs_as_text:
            event = replace_data(event)
        passed = merged.heard(heard.keys, heard.partitions, event)
        if passed and event.at >= 0:
            self.streams.events[event.kind] += 1
            if event.kind == KeyEvent.COALESCED:
                data = orjson.loads(event.text.partition(b"data: ")[2])
                self.streams.coalesced += data["changes"] or 0
        return passed


def replace_data(event: HopEvent) -> HopEvent:
    """Return an event with every whole number in its key and value as a string."""
    head, _, data = event.text.partition(b"data: ")
    return event._replace(text=b"%bdata: %b" % (head, longs_as_text(data)))
