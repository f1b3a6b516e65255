"""Removes impossible numbers from a heartbeat (pure).

A forged number must not make its node disappear. So only the number is removed; the rest of the heartbeat counts.
"""

from __future__ import annotations

from understudy_shared.base.plausible import Order, is_plausible, is_plausible_order
from understudy_shared.bus.messages import Heartbeat


def sanitized(heartbeat: Heartbeat, *, order: Order, end_version: int, lineage: str | None) -> tuple[Heartbeat, str]:
    """Return the heartbeat without the impossible numbers, and a text that names these; "" if all are possible.

    `order` is (term, epoch) of the last known assignment, `end_version` the newest known end of `lineage`; 0:
    unknown.
    """
    wrong: dict[str, object] = {}
    why = []
    if not is_plausible_order((heartbeat.term, heartbeat.epoch), order):
        wrong |= {"term": 0, "epoch": 0}
        why.append(f"assignment {heartbeat.term}.{heartbeat.epoch}, where {order[0]}.{order[1]} is known")
    if heartbeat.lineage == lineage and not is_plausible(heartbeat.end_version, end_version):
        wrong |= {"end_version": 0, "end_age_ms": None}
        why.append(f"end {heartbeat.end_version}, where {end_version} is known")
    if not wrong:
        return heartbeat, ""
    return heartbeat.model_copy(update=wrong), f"a heartbeat of {heartbeat.node_id} with {' and '.join(why)}"
