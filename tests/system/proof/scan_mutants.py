"""Bugs of scans and of named versions, as patches of running nodes and routers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from tests.system.proof.patching import patch

NODE_SCANS = "understudy_node.questions.scan.service"


def scan_what_is_shown() -> None:
    """Read each part of a scan at the version on show."""
    from understudy_shared.reads.bounds import NO_BOUND

    patch(NODE_SCANS, "bound_at", lambda bound_at: lambda *of: NO_BOUND)


def lose_a_partition() -> None:
    """Leave the last partition of a scan out."""

    def without_the_last(read_page: Callable[..., Any]) -> Callable[..., Any]:
        return lambda start, partitions, *rest, **named: read_page(
            start, partitions if start.partition == partitions[-1] else partitions[:-1], *rest, **named
        )

    patch("understudy_shared.questions.scan.service", "read_page", without_the_last)


def begin_with_the_last_key() -> None:
    """Begin a page with the last key of the one before."""

    def from_it(keys_after: Callable[..., Any]) -> Callable[..., Any]:
        def keys(reader: Any, view: Any, after: bytes | None) -> Any:
            if after is not None:
                yield from (key for key in keys_after(reader, view, None) if key.own >= after)
            else:
                yield from keys_after(reader, view, None)

        return keys

    patch("understudy_node.questions.scan.parts", "keys_after", from_it)


def forget_the_filter() -> None:
    """Apply a filter to the first page only."""

    def of_first_pages(decode: Callable[..., Any]) -> Callable[..., Any]:
        def decoded(body: bytes) -> Any:
            hop = decode(body)
            return hop if hop.after is None else replace(hop, question=replace(hop.question, where=()))

        return decoded

    patch(NODE_SCANS, "decode_scan_hop", of_first_pages)


def read_past_versions_as_shown() -> None:
    """Answer lookups of a named version from the version on show."""
    from understudy_node.stores.lookup import StoreReader

    read_from = StoreReader.read_from

    def reading(self: StoreReader, partition: int, bound: Any, known_end: int = 0) -> Any:
        return read_from(self, partition, replace(bound, version=None, snapshot=None), known_end)

    StoreReader.read_from = reading  # type: ignore[method-assign]


def pass_a_part_over() -> None:
    """Leave the second part of an export out, and do not count its rows."""
    from understudy_shared.questions.export.service import PartsAhead

    next_part, seen = PartsAhead.next, WeakKeyDictionary[PartsAhead, int]()

    async def following(self: PartsAhead) -> Any:
        seen[self] = seen.get(self, 0) + 1
        if seen[self] == 2:
            await next_part(self)
        return await next_part(self)

    PartsAhead.next = following  # type: ignore[method-assign]
