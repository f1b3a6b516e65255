"""The calls with which a router begins a scan: which version a node can read, and about how many keys there are (pure:
bytes in, bytes out).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from understudy_shared.reads.bound_parsing import bound_fields, parse_bound
from understudy_shared.reads.bounds import Bound, ReadVersion, version_of
from understudy_shared.reads.hop_fields import (
    BadHopError,
    StoreOfHop,
    object_of,
    optional_whole,
    store_of_hop,
    whole,
)

VERSION_PATH: Final = "/internal/v1/scan/version"
ESTIMATE_PATH: Final = "/internal/v1/scan/estimate"


@dataclass(frozen=True, slots=True)
class VersionHop(StoreOfHop):
    """The question at which version a node can read some partitions of a store, which it keeps for a while; or how many
    keys they have, about.
    """

    wanted: tuple[int, ...]
    bound: Bound

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        members = {
            **self.store_members(),
            "wanted": self.wanted,
            "bound": bound_fields(self.bound),
        }
        return orjson.dumps(members)


def decode_version_hop(body: bytes) -> VersionHop:
    """Parse a request. Raises BadHopError, and BadBoundError for a malformed bound."""
    fields = object_of(body)
    try:
        wanted, bound = fields["wanted"], fields["bound"]
        if not isinstance(wanted, list) or not wanted or not all(type(each) is int for each in wanted):
            raise BadHopError("the hop wants no list of partitions")
        if not isinstance(bound, dict):
            raise BadHopError("the hop has no bound")
        return VersionHop(
            *store_of_hop(fields),
            tuple(wanted),
            parse_bound(bound),
        )
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None


def encode_version(version: ReadVersion) -> bytes:
    """Return the JSON of a version."""
    return orjson.dumps({"version": version.number, "committed_at_us": version.committed_at_us})


def decode_version(body: bytes) -> ReadVersion:
    """Parse a version. Raises BadHopError."""
    fields = object_of(body)
    try:
        return version_of(whole(fields, "version"), optional_whole(fields, "committed_at_us"))
    except KeyError as error:
        raise BadHopError(f"the reply has no {error}") from None


def encode_estimate(count: int) -> bytes:
    """Return the JSON of an estimate."""
    return orjson.dumps({"count": count})


def decode_estimate(body: bytes) -> int:
    """Parse an estimate. Raises BadHopError."""
    try:
        return whole(object_of(body), "count")
    except KeyError as error:
        raise BadHopError(f"the reply has no {error}") from None
