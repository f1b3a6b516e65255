"""Bugs of the Python client, as patches of the process of the readers."""

from __future__ import annotations

from typing import Any


def follow_an_old_assignment() -> None:
    """Keep the first placement of a store, as if each partition had moved since from the next one's node."""
    from understudy.client.core.direct import Metadata

    take = Metadata._take

    def kept(self: Metadata, entry: Any, placement: Any, etag: str) -> bool:
        if entry.placement is None:
            placement.actives = [*placement.actives[1:], *placement.actives[:1]]
            return take(self, entry, placement, etag)
        return take(self, entry, entry.placement, etag)

    Metadata._take = kept  # type: ignore[method-assign]


def forget_what_was_told() -> None:
    """Begin each stream behind a position three versions before it, and tell what comes."""
    from dataclasses import replace

    from understudy.client.core.watches import Watching
    from understudy_shared.reads.tokens import decode_position

    begin = Watching._begin
    request = Watching._request

    def begun(self: Watching) -> None:
        begin(self)
        self._told.clear()

    def before(self: Watching) -> Any:
        asked = request(self)
        if not asked.last_event_id:
            return asked
        position = decode_position(asked.last_event_id)
        earlier = replace(position, version=max(1, position.version - 3), committed_at_us=None)
        return asked._replace(last_event_id=earlier.encode())

    Watching._begin = begun  # type: ignore[method-assign]
    Watching._request = before  # type: ignore[method-assign]
