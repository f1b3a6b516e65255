"""Hears what is said on an application's channel, as a node does."""

from __future__ import annotations

import redis

from understudy_shared.bus.gossip import Names
from understudy_shared.bus.messages import CommitHint

_LIMIT_S = 60


class Ear:
    """Hears the application's channel from its creation on."""

    def __init__(self, url: str, application: str) -> None:
        self._application = application
        self._client = redis.Redis.from_url(url, socket_timeout=10)
        self._subscription = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self.channel = Names(application).channel
        self._subscription.subscribe(self.channel)
        self._subscription.get_message(timeout=_LIMIT_S)
        self.heard: list[bytes] = []

    def hints(self) -> list[int]:
        """Versions, in the order in which they were hinted."""
        while (message := self._subscription.get_message(timeout=0)) is not None:
            self.heard.append(message["data"])
        spoken = [each.partition(b"\n") for each in self.heard]
        return [
            CommitHint.decode(document, application_id=self._application, where="test").version
            for kind, _, document in spoken
            if kind == b"hint"
        ]

    def close(self) -> None:
        self._subscription.close()
        self._client.close()
