"""Reads and checks the fields and parts of a hop. A malformed one raises BadHopError (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.plausible import CEILING
from understudy_shared.base.texts import clipped


class BadHopError(UnderstudyError):
    """The hop does not parse: the other side is not Understudy, or is of another release."""


def object_of(header: bytes) -> dict[str, Any]:
    """Parse the JSON object of a header."""
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise BadHopError(f"the hop's header is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadHopError("the hop's header is not a JSON object")
    return fields


def whole(fields: dict[str, Any], name: str) -> int:
    """Return a field that is a whole number from 0 to CEILING."""
    value = fields[name]
    if type(value) is int and 0 <= value <= CEILING:
        return value
    raise BadHopError(f"the hop's {name} is {clipped(value)}, not a whole number from 0 to {CEILING}")


def optional_whole(fields: dict[str, Any], name: str) -> int | None:
    """Return a field that is a whole number, or null."""
    value = fields[name]
    if value is None or type(value) is int:
        return value
    raise BadHopError(f"the hop's {name} is {clipped(value)}, not a whole number or null")


def text(fields: dict[str, Any], name: str) -> str:
    """Return a field that is a text."""
    value = fields[name]
    if isinstance(value, str):
        return value
    raise BadHopError(f"the hop's {name} is {clipped(value)}, not a text")


@dataclass(frozen=True, slots=True)
class StoreOfHop:
    """The store of a router's call. `layout` names how the router places and encodes keys."""

    application: str
    lineage: str
    store: str
    layout: str
    partitions: int

    def store_members(self) -> dict[str, object]:
        """Return the first members of the call's JSON."""
        return {
            "application": self.application,
            "lineage": self.lineage,
            "store": self.store,
            "layout": self.layout,
            "partitions": self.partitions,
        }


def store_of_hop(fields: dict[str, Any]) -> tuple[str, str, str, str, int]:
    """Return the store that a call names, in the order of `StoreOfHop`."""
    return (
        text(fields, "application"),
        text(fields, "lineage"),
        text(fields, "store"),
        text(fields, "layout"),
        whole(fields, "partitions"),
    )


def cut(body: bytes, lengths: Sequence[int], start: int) -> list[bytes]:
    """Cut a body into parts of these lengths, one after another from `start` to its end."""
    parts = []
    for length in lengths:
        parts.append(body[start : start + length])
        start += length
    if start != len(body):
        raise BadHopError(f"the hop has {len(body)} bytes, and its parts end at {start}")
    return parts
