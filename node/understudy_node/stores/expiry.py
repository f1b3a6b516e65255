"""Expired records that Spark has not removed yet, as far as the state shows that (pure).

Spark removes in the next batch, by the watermark that this version left to it. Three facts decide: whether the
watermark reaches the operator's rows at all, which the schema of its state shows; the watermark that the version left;
and whether the operator may stand behind a join, which holds the watermark back by an amount that only the plan knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from understudy_node.checkpoint.operators import JOIN
from understudy_node.replica.task_view import TaskView

_DELAY: Final = "spark.watermarkDelayMs"
"""Key in the metadata of a column that has a watermark."""

EXPIRED_JSON: Final = {True: b"true", False: b"false", None: b"null"}


@dataclass(frozen=True, slots=True)
class Expiry:
    """The expiry of rows. `is_watermarked`: a watermark reaches them. `may_lag`: it may be behind the query's."""

    is_watermarked: bool = True
    may_lag: bool = False

    def is_expired(self, expires_us: int, view: TaskView) -> bool | None:
        """Whether the watermark has reached an expiry, as Spark compares them; None while that is unknown."""
        if not self.is_watermarked:
            return False
        watermark_ms = view.next_watermark_ms
        if watermark_ms is None:  # Spark purged the version's commit
            return None
        if watermark_ms * 1000 < expires_us:
            return False
        return None if self.may_lag else True


def is_watermarked(*schemas_json: str) -> bool:
    """Whether a column of these schemas, as Spark's JSON, has a watermark."""
    return any(_DELAY in field["metadata"] for text in schemas_json for field in json.loads(text)["fields"])


def may_stand_behind_join(operator_id: int, operators: Iterable[tuple[int, str]]) -> bool:
    """Whether a join may be among what feeds an operator. `operators` are all of the query: id, and Spark's name.

    Spark numbers operators from the sink to the sources, so what feeds an operator has a higher number.
    """
    return any(name == JOIN and other > operator_id for other, name in operators)
