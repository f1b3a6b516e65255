"""What of a heartbeat is believed, beside what is known here (pure).

A node that follows a forged assignment, or was forged itself, must not vanish for it: only the numbers that cannot be
true are left out, and then it says nothing about them.
"""

from __future__ import annotations

from understudy_shared.messages import Heartbeat
from understudy_shared.plausible import Order, is_plausible, is_plausible_order


def sanitized(heartbeat: Heartbeat, *, order: Order, end_version: int, lineage: str | None) -> tuple[Heartbeat, str]:
    """The heartbeat without what cannot be true, and what that was; "" when all of it can.

    `order` is the last assignment that is known, `end_version` the newest end of `lineage`; 0: nothing is known.
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
    return heartbeat.model_copy(update=wrong), f"a heartbeat of {heartbeat.node_id} that tells of {' and '.join(why)}"
