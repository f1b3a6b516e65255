"""A stranger who may write to Redis and has no key: it records what is said and what keys hold, and says it again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from understudy_shared.bus.gossip import Names


class Recorder:
    """One stranger. `messages` are those of its channels, in order; `keys` what stood in keys at `keep`."""

    def __init__(self, url: str, application_id: str) -> None:
        self.messages: list[bytes] = []
        self.keys: dict[bytes, bytes] = {}
        self._redis = redis.Redis.from_url(url, socket_timeout=10)
        self._names = Names(application_id)
        self._heard = self._redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._heard.subscribe(self._names.channel, self._names.heartbeats)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._record, name="recorder")
        self._thread.start()

    def keep(self) -> None:
        """Remember every key of the application as it is now."""
        for key in self._redis.scan_iter("us:*", count=1000):
            value = self._redis.get(key)
            if isinstance(value, bytes):
                self.keys[key] = value

    def said_by(self, node_id: str) -> list[bytes]:
        mark = b'"node_id":"%b"' % node_id.encode()
        return [each for each in self.messages if b"\nheartbeat\n" in each and mark in each]

    def say(self, *messages: bytes) -> None:
        for message in messages:
            self._redis.publish(self._names.channel, message)

    def write(self, key: str, value: bytes, *, expiry_ms: int | None = None) -> None:
        self._redis.set(key, value, px=expiry_ms)

    def put_back(self, key: str) -> None:
        """Write the value that a key had at `keep`, for an hour."""
        self._redis.set(key, self.keys[key.encode()], px=3_600_000)

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)
        self._heard.close()
        self._redis.close()

    def _record(self) -> None:
        while not self._ended.is_set():
            try:
                message = self._heard.get_message(timeout=0.5)
            except redis.TimeoutError:  # the end of a message took longer than its beginning: redis-py connects again
                continue
            if message is not None and isinstance(message["data"], bytes):
                self.messages.append(message["data"])


@contextmanager
def recorder(url: str, application_id: str) -> Iterator[Recorder]:
    """A stranger until the end of the block."""
    made = Recorder(url, application_id)
    try:
        yield made
    finally:
        made.close()
