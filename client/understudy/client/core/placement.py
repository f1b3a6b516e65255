"""The placement of a store's keys: what a router's metadata says, checked before it is used (pure).

Everything in it may be wrong: a router that lags, a proxy's page, a lie. A placement with a fault is not used, and the
routers answer. A node gets the client's credential, so a doubtful address is not used either.

Keys are encoded by the types of their columns where their text is not enough: for values that must be sent as JSON, and
to find the partition of a key. That imports the codec of Spark's keys, which most calls do not need.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

import orjson

from understudy.client.core.exchange import Endpoint, Reply, parse_endpoint
from understudy.client.core.values import are_segments, is_printed, json_of, key_json, parts_of
from understudy.client.errors import UsageError
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.words import StoreKind
from understudy_shared.questions.lookup.windows import window_key
from understudy_shared.reads.tokens import decode_position
from understudy_shared.spark.key_codec import KeyCodec, Row
from understudy_shared.spark.store_keys import key_codec, parse_encoding
from understudy_shared.spark.types import Field, StructType, parse_type_name

_NAME = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*(?!0x)[a-z0-9_-]*[a-z_-][a-z0-9_-]*")
"""A name in lower case. One whose last part is a number is an address in disguise: `127.1`."""


class NodeAddresses:
    """The way to nodes: by the scheme of the routers, to the addresses that they advertise or are mapped to.

    Rule: with a mapping only nodes that it names are asked. Certificates have the name that the node advertises.
    """

    def __init__(self, routers: Sequence[Endpoint], mapping: Mapping[str, str] | None) -> None:
        """Take the mapping of advertised addresses to those that are reached from here. Raises UsageError."""
        schemes = {each.scheme for each in routers}
        if len(schemes) > 1:
            what = "nodes would be asked by the scheme of their router, and the routers have two"
            raise UsageError(what, where="urls", fix="Name all routers by https, or leave routing='direct' out")
        (self._scheme,) = schemes
        self._mapping = None if mapping is None else {_parsed(name): _parsed(to) for name, to in mapping.items()}

    def endpoint(self, host: str, port: int, router: Endpoint) -> Endpoint | None:
        """Return where to ask a node that metadata of this router names; None if it must not be asked."""
        host = host.lower()
        if not 0 < port < 65536 or len(host) > 253:
            return None
        is_loopback = _is_loopback(host)
        if is_loopback is None:
            return None
        if self._mapping is not None:
            found = self._mapping.get((host, port))
            return None if found is None else Endpoint(self._scheme, *found, "" if found[0] == host else host)
        if is_loopback and not _is_loopback(router.host):
            return None  # on this machine it is another's
        return Endpoint(self._scheme, host, port)


def _is_loopback(host: str) -> bool | None:
    """Whether a host is this machine. None: it cannot be asked at all, such as `0.0.0.0`."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost") if _NAME.fullmatch(host) else None
    return None if address.is_unspecified or address.is_multicast else address.is_loopback


def _parsed(address: object) -> tuple[str, int]:
    """Return host and port of an address. Raises UsageError."""
    try:
        if isinstance(address, str) and "/" not in address:
            found = parse_endpoint(f"http://{address}")
            if address.endswith(f":{found.port}"):
                return found.host, found.port
    except UsageError:
        pass
    what = f"{address!r} is not the address of a node"
    raise UsageError(what, where="addresses", fix="Write {'node-1:8081': 'localhost:18081'}")


MAX_METADATA_BYTES = 16 * 1024 * 1024
MAX_PARTITIONS = 65_536
"""Limits on metadata that is read: about 150 bytes for each partition."""

KNOWN_KEYS = 1024
"""Number of keys whose partition is cached: many programs ask for a few keys again and again."""

_MAX_TOKENS = 8

Order = tuple[int, int]
"""Term and epoch of an assignment: later ones are greater."""

NO_KEY = (UnderstudyError, ValueError, TypeError, ArithmeticError, RecursionError, struct.error)
"""The errors that a value raises when it does not fit the key of the store."""


def codec_of(schema: Mapping[str, Any], *, of_windows: bool) -> KeyCodec:
    """Return the codec of the keys of a store by its entry in `GET /v1/stores`, without their window for `of_windows`.

    Raises UnderstudyError for a type that this release does not know, and for a store without windows.
    """
    columns = [*schema["key"], *schema.get("user_key", ())]
    kind = StoreKind(schema["kind"])
    codec = key_codec(
        StructType(tuple(Field(each["name"], parse_type_name(each["type"])) for each in columns)),
        kind,
        names=[each["name"] for each in columns],
        num_hash_columns=len(schema["key"]),
        is_normalised=True,
    )
    return window_key(codec, kind).codec if of_windows else codec


def row_of(codec: KeyCodec, parts: Sequence[Any]) -> Row:
    """Parse the parts of a key as a server does: texts and whole numbers, or JSON. Raises one of NO_KEY."""
    if are_segments(parts):
        return codec.parse_segments([*map(str, parts)])
    return codec.parse_json(json_of(parts))


def by_column(codec: KeyCodec, parts: Sequence[Any]) -> Any:
    """Return a key as JSON by column. Raises BadKeyError for one that does not fit the store."""
    return codec.to_json(codec.encode(row_of(codec, parts)))


def printed(codec: KeyCodec, many: Sequence[Sequence[Any]]) -> list[Any]:
    """Return keys by column, as servers print them. Those that do not fit the store are left out."""
    found = []
    for parts in many:
        with suppress(*NO_KEY):
            found.append(by_column(codec, parts))
    return found


def is_same(codec: KeyCodec, parts: Sequence[Any], answered: object) -> bool:
    """Whether a key in an answer equals these parts, in whatever form either is written."""
    try:
        return codec.encode(row_of(codec, parts)) == codec.encode(codec.parse_json(answered))
    except NO_KEY:
        return False


class BadMetadataError(UnderstudyError):
    """Metadata that is not used."""


class Placement:
    """The placement of a store's keys, by one assignment. `actives` has the node of each partition."""

    def __init__(
        self, order: Order, history: tuple[str, str], codec: KeyCodec, actives: Sequence[Endpoint | None], bounds: Any
    ) -> None:
        """Keep what was read. `history` is application and lineage, `bounds` the store's defaults at the router."""
        self.order, self.actives = order, actives
        self.is_scattered = codec.is_scattered
        self.bounds: Mapping[str, Any] = bounds
        self._history, self._codec = history, codec
        self._own: dict[str, bool] = {}
        self._partition_of_parts = lru_cache(KNOWN_KEYS, typed=True)(self._placed)  # 1 and True are two keys

    def partition(self, parts: Sequence[Any]) -> int | None:
        """Return the partition of a key as `get` takes it; None if only a server can refuse the key."""
        return self._partition_of_parts(*parts) if are_segments(parts) else self._placed(*parts)

    def _placed(self, *parts: Any) -> int | None:
        try:
            return self._codec.partition(row_of(self._codec, parts), len(self.actives))
        except NO_KEY:
            return None

    def partitions(self, keys: Sequence[Any]) -> Sequence[int | None]:
        """Return the partitions of keys as a batch has them."""
        try:
            found = self._codec.key_columns.partitions(keys, len(self.actives))
        except NO_KEY:
            found = None
        return [self._partition_of(key) for key in keys] if found is None else found

    def _partition_of(self, key: Any) -> int | None:
        try:
            return self._codec.partition(self._codec.parse_json(key_json(key)), len(self.actives))
        except NO_KEY:
            return None

    def is_key(self, parts: Sequence[Any], answered: Any) -> bool:
        """Whether a key in an answer is the one that was asked for."""
        return tuple(answered.values()) == parts or is_same(self._codec, parts, answered)

    def are_keys(self, keys: Sequence[Any], results: Sequence[Any]) -> list[bool]:
        """Return for each result of a batch whether it has the key at its place. A problem names no key."""
        return [
            "found" in each
            and type(each.get("key")) is dict
            and (is_printed(key, each["key"]) or is_same(self._codec, parts_of(key), each["key"]))
            for key, each in zip(keys, results, strict=True)
        ]

    def is_of_history(self, token: object) -> bool:
        """Whether the position of an answer is of this application and lineage: a stranger's is not believed."""
        if not isinstance(token, str):
            return False
        known = self._own.get(token)
        if known is None:
            try:
                position = decode_position(token)
                known = (position.application_id, position.lineage) == self._history
            except UnderstudyError:
                known = False
            if len(self._own) >= _MAX_TOKENS:
                self._own.clear()
            self._own[token] = known
        return known


def parse_placement(reply: Reply, store: str, addresses: NodeAddresses, router: Endpoint) -> Placement:
    """Return the placement of a store by a router's reply. Raises BadMetadataError."""
    kind = reply.content_type.partition(";")[0].strip().lower()
    if reply.status != 200 or kind != "application/json" or len(reply.body) > MAX_METADATA_BYTES:
        raise BadMetadataError(f"the reply has status {reply.status} and {len(reply.body)} bytes", where="metadata")
    try:
        document = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        raise BadMetadataError("it is not JSON", where="metadata") from None
    match document:
        case {
            "store": str(name),
            "partitions": [*partitions],
            "term": int(term),
            "epoch": int(epoch),
            "application_id": str(application_id),
            "lineage": str(lineage),
            "bounds": dict(bounds),
            "encoding": dict(encoding),
            "excluded_hosts": [*excluded],
        } if name == store and 0 < len(partitions) <= MAX_PARTITIONS and min(term, epoch) >= 0 and _are_bounds(bounds):
            out = {_address(each) for each in excluded}
            actives = [_active(at, each, out, addresses, router) for at, each in enumerate(partitions)]
        case _:
            raise BadMetadataError("it lacks what direct routing needs, or is of another store", where="metadata")
    try:
        codec = parse_encoding(encoding, len(partitions))
    except UnderstudyError as error:
        raise BadMetadataError(error.what, where="metadata") from None
    return Placement((term, epoch), (application_id, lineage), codec, actives, bounds)


def _are_bounds(bounds: Mapping[Any, Any]) -> bool:
    return all(isinstance(value, (str, int, bool)) for value in bounds.values()) and (
        type(bounds.get("wait_ms", 0)) is int
    )


def _active(
    at: int, entry: Any, excluded: set[tuple[str, int]], addresses: NodeAddresses, router: Endpoint
) -> Endpoint | None:
    """Return the node to ask for a partition; None without one."""
    match entry:
        case {"partition": int(partition), "active_host": None} if partition == at:
            return None
        case {"partition": int(partition), "active_host": dict(host)} if partition == at:
            address = _address(host)
            return None if address in excluded else addresses.endpoint(*address, router)
        case _:
            raise BadMetadataError(f"entry {at} is not for partition {at}", where="metadata")


def _address(entry: Any) -> tuple[str, int]:
    match entry:
        case {"host": str(host), "port": int(port)} if len(host) < 1024:
            return host, port
        case _:
            raise BadMetadataError("a host is not a host and a port", where="metadata")
