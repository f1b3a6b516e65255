"""The history of a key: what a reader may ask, and the call by which a router asks a node (pure).

The reply is the part of the answer behind the key: a router passes it on without parsing it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

import orjson

from understudy_shared.base.plausible import CEILING
from understudy_shared.base.texts import clipped
from understudy_shared.reads.bound_parsing import parse_whole
from understudy_shared.reads.bounds import BadBoundError
from understudy_shared.reads.hop_fields import BadHopError, StoreOfHop, object_of, store_of_hop, text, whole

PATH: Final = "/internal/v1/history"
MAX_HISTORY_BYTES: Final = 16 * 1024 * 1024
"""Limit on a reply: one entry may be as long as any value."""

_PARAMETERS: Final = ("from", "to")


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """The versions of a history, both inclusive. Without `first`: from the oldest that can be read. Without `last`: to
    the newest.
    """

    first: int | None = None
    last: int | None = None
    include_expired: bool = True


def parse_range(parameters: dict[str, str], *, include_expired: bool) -> HistoryRange:
    """Parse the versions of a history. Raises BadBoundError."""
    unknown = sorted(parameters.keys() - set(_PARAMETERS))
    if unknown:
        raise BadBoundError(
            f"unknown parameter {clipped(unknown[0])}", where="query", fix=f"Known are: {', '.join(_PARAMETERS)}"
        )
    first, last = (parse_whole(parameters, name, unit="batches") for name in ("from", "to"))
    for name, version in (("from", first), ("to", last)):
        if version is not None and version > CEILING:
            raise BadBoundError(f"{name}={version} is above {CEILING}", where=name, fix="Send the version of an answer")
    if first is not None and last is not None and first > last:
        raise BadBoundError(f"from={first} is after to={last}", where="from", fix="Send the earlier version as from")
    return HistoryRange(first, last, include_expired)


@dataclass(frozen=True, slots=True)
class HistoryHop(StoreOfHop):
    """A question of a router. `layout` names how it placed and encoded the key."""

    partition: int
    row: bytes
    range: HistoryRange

    def encode(self) -> bytes:
        """Return the JSON of the request."""
        return orjson.dumps(
            {
                **self.store_members(),
                "partition": self.partition,
                "row": base64.b64encode(self.row).decode(),
                "from": self.range.first,
                "to": self.range.last,
                "include_expired": self.range.include_expired,
            }
        )


def decode_history(body: bytes) -> bytes:
    """Return the JSON behind the key. Raises BadHopError for a reply that is not a history."""
    if not body.startswith(b'{"partition":') or not body.endswith(b"}\n"):
        raise BadHopError("the reply is not a history")
    return body[1:]


def decode_history_hop(body: bytes) -> HistoryHop:
    """Parse a question. Raises BadHopError."""
    fields = object_of(body)
    try:
        return HistoryHop(
            *store_of_hop(fields),
            whole(fields, "partition"),
            base64.b64decode(text(fields, "row"), validate=True),
            HistoryRange(
                None if fields["from"] is None else whole(fields, "from"),
                None if fields["to"] is None else whole(fields, "to"),
                fields["include_expired"] is not False,
            ),
        )
    except KeyError as error:
        raise BadHopError(f"the hop has no {error}") from None
    except binascii.Error as error:
        raise BadHopError(f"the hop's row is not base64: {error}") from None
