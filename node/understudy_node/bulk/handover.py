"""The layers of a node's views that its process for bulk parts has: each is handed over once; the last used ones stay.

A layer is a base or a spill, which the process opens itself, or a tier, whose changes are sent to it. Layers never
change, so those of the next version are mostly there. The node holds on to a layer for as long as the process has it:
so its files stay, and no other object takes its identity.
"""

from __future__ import annotations

import marshal
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Final

from understudy_node.bulk.pipe import Changes, Forget, OpenBase, OpenSpill, ViewParts
from understudy_node.engine.arena_base import ArenaBase
from understudy_node.engine.base import Base, EmptyBase, innermost
from understudy_node.engine.rocksdb_base import RocksBase
from understudy_node.engine.spill import Spill
from understudy_node.engine.tier import Tier
from understudy_node.engine.view import View

MAX_LAYERS: Final = 64
MAX_TIERS_BYTES: Final = 256 * 1024 * 1024
"""Memory of the tiers that the process keeps, besides those of the views that it reads."""

CHANGES_AT_ONCE: Final = 4_096
"""Number of changes in one message: making it takes below a millisecond of the node's loop."""

Layer = Base | Spill | Tier
Message = OpenBase | OpenSpill | Changes | Forget


@dataclass(slots=True)
class _Known:
    layer: Layer
    number: int
    bytes: int


class Handover:
    """The layers that a process has, and the messages that give it those of a view."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._numbers = count(1)

    def views(self, views: Mapping[str, View]) -> tuple[dict[str, ViewParts], Iterator[Message]] | None:
        """Return the views as the process knows them, and the messages that have to come first, to be sent whole; None
        for a base of which it cannot have the files.
        """
        messages: list[Iterator[Message]] = []
        found: dict[str, ViewParts] = {}
        used: set[int] = set()
        for name, view in views.items():
            if not isinstance(innermost(view.base), RocksBase | ArenaBase | EmptyBase):
                return None
            layers: list[Layer] = [view.base, *view.tiers, *([] if view.spill is None else [view.spill])]
            numbers = [self._number(layer, messages) for layer in layers]
            used.update(numbers)
            tiers = tuple(numbers[1 : 1 + len(view.tiers)])
            spill = None if view.spill is None else numbers[-1]
            found[name] = ViewParts(view.version, view.base_version, numbers[0], tiers, spill)
        forgotten = self._forget(used)
        if forgotten:
            messages.append(iter([Forget(forgotten)]))
        return found, (message for each in messages for message in each)

    def _number(self, layer: Layer, messages: list[Iterator[Message]]) -> int:
        known = self._known.get(id(layer))
        if known is not None:
            self._known.move_to_end(id(layer))
            return known.number
        number = next(self._numbers)
        self._known[id(layer)] = _Known(layer, number, layer.resident_bytes if isinstance(layer, Tier) else 0)
        messages.append(_messages(layer, number))
        return number

    def _forget(self, used: set[int]) -> tuple[int, ...]:
        """Forget the layers that were not used for longest, as far as there are too many."""
        forgotten = []
        tiers_bytes = sum(known.bytes for known in self._known.values())
        for key, known in list(self._known.items()):
            if len(self._known) <= MAX_LAYERS and tiers_bytes <= MAX_TIERS_BYTES:
                break
            if known.number not in used:
                del self._known[key]
                tiers_bytes -= known.bytes
                forgotten.append(known.number)
        return tuple(forgotten)


def _messages(layer: Layer, number: int) -> Iterator[Message]:
    match layer:
        case Tier():
            return _changes(layer, number)
        case Spill():
            return iter([OpenSpill(number, str(layer.directory))])
        case _:
            base = innermost(layer)
            return iter([OpenBase(number, str(base.directory) if isinstance(base, RocksBase | ArenaBase) else "")])


def _changes(tier: Tier, number: int) -> Iterator[Changes]:
    pairs = iter(tier.changes.items())
    left = len(tier.changes)
    while True:
        some = list(islice(pairs, CHANGES_AT_ONCE))
        left -= len(some)
        yield Changes(number, tier.first_version, tier.last_version, marshal.dumps(some), is_last=left <= 0)
        if left <= 0:
            return
