"""A connection to one Redis or Valkey that reads streams. Not thread-safe; every answer has a deadline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from understudy_aligned.inputs.protocol import InputError, UnknownTopicError
from understudy_aligned.inputs.records import TopicPartition
from understudy_aligned.inputs.redis_rows import Entry, StreamInfo, stream_info
from understudy_shared.base.masking import masked, words_of
from understudy_shared.bus.redis_connection import checked, leaves
from understudy_shared.bus.redis_pools import thread_pool

StreamReply = tuple[StreamInfo | None, Sequence[Entry]]
"""The state of a stream (None if it does not exist) and some of its entries, read at the same moment."""


DATA_LOSS_FIX = "Start with a new checkpoint, or set fail_on_data_loss=false to go on with what is left"
"""The fix of an error about lost entries."""


def stream_key(tp: TopicPartition) -> str:
    """Return the key of a partition's stream."""
    return f"{tp.topic}:{tp.partition}"


class StreamServer:
    """One connection, opened on demand and reopened when it breaks. Commands are not retried."""

    def __init__(self, url: str, *, request_timeout_ms: int) -> None:
        """Prepare without I/O. Raises SettingsError for a URL that is not a Redis URL."""
        self.where = masked(url)
        self._url = url
        self._timeout_ms = request_timeout_ms
        pool = checked(url, lambda: thread_pool(url, timeout_s=request_timeout_ms / 1000))
        self._pool = pool
        self._client = redis.Redis(connection_pool=pool)
        for command in ("XRANGE", "XREAD"):
            self._client.set_response_callback(command, lambda reply, **_: reply)

    def key_types(self, keys: Sequence[str]) -> Sequence[str]:
        """Return the type of each key: `stream`, another type, or `none`."""
        with self._translated("looking for streams"), self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.type(key)
            return [kind.decode() for kind in pipe.execute()]

    def read_streams(self, wanted: Sequence[tuple[str, str, int]]) -> Sequence[StreamReply]:
        """Read the state and entries of streams in one transaction.

        Each item of `wanted` is a key, the ID to read behind ("" for the beginning), and a number of entries.
        """
        with self._translated("reading streams"), self._client.pipeline(transaction=True) as pipe:
            for key, behind, count in wanted:
                pipe.execute_command("XINFO", "STREAM", key)  # type: ignore[no-untyped-call]
                if count:
                    bounds = (f"({behind}" if behind else "-", "+")
                    pipe.execute_command("XRANGE", key, *bounds, "COUNT", count)  # type: ignore[no-untyped-call]
            replies = iter(pipe.execute(raise_on_error=False))
            return [self._parse_reply(key, next(replies), next(replies) if count else []) for key, _, count in wanted]

    def entries(self, key: str, first: str, last: str, count: int) -> Sequence[Entry]:
        """Return up to `count` entries of a range. `first` and `last` are as for XRANGE."""
        with self._translated("reading a range"):
            reply: Sequence[Entry] = self._run("XRANGE", key, first, last, "COUNT", count)
            return reply

    def wait(self, places: Sequence[tuple[str, str]], *, timeout_ms: int) -> bool:
        """Wait until a stream has an entry behind its ID, and return whether one has.

        Waits at most half of the request timeout, so that the answer itself is not late.
        """
        block_ms = min(timeout_ms, self._timeout_ms // 2)
        if block_ms <= 0:  # BLOCK 0 waits for ever
            return False
        keys, ids = [key for key, _ in places], [behind or "0-0" for _, behind in places]
        with self._translated("waiting for entries"):
            return bool(self._run("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", *keys, *ids))

    def close(self) -> None:
        """Give the connection back."""
        self._client.close()
        self._pool.close()

    def _run(self, *command: str | int) -> Any:
        return self._client.execute_command(*command)  # type: ignore[no-untyped-call]

    def _parse_reply(self, key: str, info: object, entries: object) -> StreamReply:
        for reply in (info, entries):
            if isinstance(reply, ResponseError):
                if "no such key" in str(reply):
                    return None, []
                if str(reply).startswith("WRONGTYPE"):
                    raise self.not_a_stream(key, "something else")
                raise self._error(reply, "reading streams")
        assert isinstance(info, list)
        assert isinstance(entries, list)
        return stream_info(info), entries

    def not_a_stream(self, key: str, kind: str) -> UnknownTopicError:
        """Make the error for a key that holds another type."""
        return UnknownTopicError(
            f"the key '{key}' holds {kind}, not a stream",
            where=self.where,
            fix="Partition p of a topic is the stream <topic>:<p>. Use another topic, or delete the key",
        )

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            if leaves(error):
                self._pool.disconnect()
            raise self._error(error, doing) from error

    def _error(self, error: BaseException, doing: str) -> InputError | UnknownTopicError:
        if isinstance(error.__cause__, RedisError):  # redis-py wraps a refused login on a unix socket, for one
            error = error.__cause__
        why = words_of(error, self._url)
        what, fix = f"Redis cannot be reached while {doing}: {why}", "Check that it runs and accepts connections"
        if isinstance(error, (AuthenticationError, AuthorizationError)):
            what, fix = f"Redis refused the login while {doing}: {why}", "Check user and password in the URL"
        elif isinstance(error, NoPermissionError):
            fix = "Let the user run TYPE, XINFO, XRANGE, XREAD, MULTI and EXEC on the streams' keys"
            what = f"Redis refused {doing}: {why}"
        elif isinstance(error, ResponseError):
            what, fix = f"Redis refused {doing}: {why}", "Check that it is Redis 6.2 or newer and not a cluster node"
        elif isinstance(error, (TimeoutError, RedisTimeoutError)):
            what = f"Redis did not answer within {self._timeout_ms} ms while {doing}"
            fix = "Check that it runs, is not overloaded, and accepts connections from this host"
        return InputError(what, where=self.where, fix=fix)
