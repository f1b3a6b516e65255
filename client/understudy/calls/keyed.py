"""Calls about one key: sent so that no proxy rewrites it, and checked that the answer is about the same key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from understudy.calls.http_client import RemoteServer
from understudy.client.core.reader import BoundStore, Reader
from understudy.client.core.values import are_plain, exact_text, key_form, parts_of
from understudy.terminal.exits import CommandError, ExitCode


class KeyCall:
    """The call of a command about one key of a store: `lookup`, `metadata`, `windows` or `history`."""

    def __init__(self, server: RemoteServer, store: str, action: str, key: Sequence[str] | str) -> None:
        """Prepare the call. `key` are words, a word for each column, or a JSON text. Raises CommandError."""
        self._server, self._action = server, action
        self._store = BoundStore(Reader(server.state), store)
        if isinstance(key, str):
            self._parts = parts_of(orjson.loads(key))
            self._path, self._named = f"{self._store.path}/{action}", {"key": exact_text(key)}
        else:
            self._parts = server.take(lambda until_s: self._store.exact(key, until_s, action))
            target, _ = key_form("keys" if action == "lookup" and are_plain(self._parts) else action, self._parts)
            self._path, self._named = f"{self._store.path}/{target}", {}

    def get(self, parameters: Mapping[str, str], *, wait_ms: int = 0) -> bytes:
        """Return the JSON of the answer. Raises CommandError, also for the answer of another key."""
        body = self._server.get(self._path, {**self._named, **parameters}, wait_ms=wait_ms)
        check_key(self._server, self._store, self._parts, orjson.loads(body), self._action)
        return body


def check_key(
    server: RemoteServer, store: BoundStore, parts: Sequence[Any], answer: Mapping[str, Any], action: str = "lookup"
) -> None:
    """Raise CommandError for the answer of another key."""
    server.take(lambda until_s: store.check_key(parts, answer.get("key"), until_s, action))


def words_or_json(key: Sequence[str]) -> Sequence[str] | str:
    """Return a key as it is given in words, or as one JSON array; the empty one without a word. Raises CommandError."""
    if not key or (len(key) == 1 and key[0].startswith("[")):
        return checked_json(key[0] if key else "[]", where="the key")
    return key


def checked_json(text: str, *, where: str) -> str:
    """Return `text`, when it is JSON: it travels as it was written, so that no digit is lost on the way."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CommandError(
            f"{text!r} is not JSON: {error}",
            where=where,
            fix="Write an array in schema order or an object by column name: '[\"N14228\", 5]'",
            exit_code=ExitCode.USAGE,
        ) from None
    return text
