"""Parsing of a request for a watch, the same for nodes and routers (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from understudy_shared.auth.principals import Authorization
from understudy_shared.auth.redaction import require_key
from understudy_shared.base.errors import BadKeyError, UnderstudyError
from understudy_shared.base.texts import clipped
from understudy_shared.http.lookup_requests import encoded_key, key_and_params, pop_longs
from understudy_shared.http.problems import Problem, ProblemError, ProblemType, problem_of
from understudy_shared.http.target import parse_query
from understudy_shared.questions.lookup.batches import parse_batch
from understudy_shared.questions.watch.hop import WatchKey
from understudy_shared.reads.bound_parsing import parse_moment
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.tokens import POSITION_PREFIX, BadPositionError, Position, decode_position
from understudy_shared.spark.key_codec import KeyCodec, Row

SELECTION_PARAMETERS = ("limit", "include_expired")
_KNOWN = "from, include_expired, limit and longs"
_FIX = "Send the `position` of an answer, the id of an event, a time ago (1m), or nothing"


Beginning = Position | int | None
"""The beginning of a watch: a position, a moment in microseconds (below 0 a time ago), or None for present values."""


class WatchRequest(NamedTuple):
    """A request as it came: parsed keys, its beginning, and the parameters of the selection."""

    rows: Sequence[Row]
    begins: Beginning
    selection: Mapping[str, object]
    longs_as_text: bool


@dataclass(frozen=True, slots=True)
class WatchedStore:
    """A store whose keys are watched."""

    name: str
    codec: KeyCodec
    partitions: int
    max_key_bytes: int

    def keys(self, rows: Sequence[Row], authorization: Authorization) -> list[WatchKey]:
        """Return the keys of a request, each once. Raises the problem of one that is too long or not granted."""
        found: dict[bytes, WatchKey] = {}
        for row in rows:
            encoded = encoded_key(self.codec, row, self.max_key_bytes)
            key = self.codec.to_json(encoded)
            if authorization.keys.prefixes is not None:
                require_key(authorization, key)
            found[encoded] = WatchKey(self.codec.partition(row, self.partitions), encoded, orjson.dumps(key))
        return list(found.values())


def parse_watch(codec: KeyCodec, form: list[str], query: bytes, last_event_id: str) -> WatchRequest:
    """Parse a request for one key, which is given as that of a lookup. Raises its problem."""
    row, params = key_and_params(codec, form, query)
    longs = pop_longs(params)
    return _request([row], params, last_event_id, longs_as_text=longs)


def parse_watch_body(codec: KeyCodec, body: bytes, query: bytes, last_event_id: str) -> WatchRequest:
    """Parse a request for many keys, which are given as those of a batch. Raises its problem."""
    params = parse_query(query)
    longs = pop_longs(params)
    if params:
        what = f"a watch of many keys has no query parameter {clipped(min(params))}"
        raise ProblemError(Problem(ProblemType.BAD_REQUEST, what, "query", "Send it among the bounds, in the body"))
    keys, bounds = parse_batch(body)
    if not keys:
        raise BadKeyError("there is no key to watch", where="keys", fix='Send {"keys": [["a"], ["b"]]}')
    rows = [_parsed(codec, index, key) for index, key in enumerate(keys)]
    return _request(rows, bounds, last_event_id, longs_as_text=longs)


def members_with_prefix(body: bytes) -> Mapping[str, Any] | None:
    """Return the members of a body that names a prefix in place of keys; None for any other."""
    if b'"prefix"' not in body:
        return None
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return members if isinstance(members, dict) and "prefix" in members else None


def _parsed(codec: KeyCodec, index: int, key: object) -> Row:
    try:
        return codec.parse_json(key)
    except UnderstudyError as error:
        problem = problem_of(error)
        raise ProblemError(Problem(problem.type, problem.detail, f"keys[{index}]", problem.fix)) from None


def _request(
    rows: Sequence[Row], params: Mapping[str, object], last_event_id: str, *, longs_as_text: bool
) -> WatchRequest:
    unknown = sorted(params.keys() - {"from", *SELECTION_PARAMETERS})
    if unknown:
        fix = f"Known are {_KNOWN}: a watch tells the newest version, and then what comes"
        raise BadBoundError(f"a watch has no bound {clipped(unknown[0])}", where="bounds", fix=fix)
    selection = {name: params[name] for name in SELECTION_PARAMETERS if name in params}
    return WatchRequest(rows, beginning_of(params, last_event_id), selection, longs_as_text)


def beginning_of(params: Mapping[str, object], last_event_id: str) -> Beginning:
    """Return where a watch begins. Raises the problem of what does not parse."""
    # The header counts first: a browser that connects again sends it to the address of the first time.
    where, given = ("last-event-id", last_event_id) if last_event_id else ("from", params.get("from"))
    if given is None:
        return None
    if not isinstance(given, str):
        raise BadBoundError(f"{where} must be a text", where=where, fix=_FIX)
    if where == "from" and not given.startswith(POSITION_PREFIX):
        return parse_moment(where, given)
    try:
        return decode_position(given)
    except BadPositionError as error:
        raise BadPositionError(error.what, where=where, fix=_FIX) from None
