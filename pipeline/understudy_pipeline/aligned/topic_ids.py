"""Topics that were deleted and made anew: found by their ids, which the offset keeps.

A log that was made anew and has grown past a position looks like the one before it. Only its topic's id tells.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from understudy_pipeline.aligned.options import AlignedOptions
from understudy_pipeline.inputs.opening import open_input
from understudy_pipeline.inputs.protocol import DataLostError

log = logging.getLogger(__name__)


def made_anew(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Return topics that have another id now (pure). A topic of which one of the ids is unknown is not among them."""
    return frozenset(topic for topic, found in now.items() if before.get(topic, found) != found)


def report_made_anew(topics: Collection[str], *, is_error: bool) -> None:
    """Raise DataLostError if `is_error`, else log a warning."""
    named = ", ".join(sorted(topics))
    what = f"topics were deleted and created again, and what was not read before is lost: {named}"
    if is_error:
        raise DataLostError(
            what,
            where="option topics",
            fix="Start with a new checkpoint, or set fail_on_data_loss=false to read the new topics from the beginning",
        )
    log.warning("%s; reading the new topics from their beginning", what, extra={"action": "data-lost"})


def current_topic_ids(options: AlignedOptions) -> Mapping[str, str]:
    """Ask every server over a new connection. Topics whose id is unknown are left out."""
    ids: dict[str, str] = {}
    for config in options.inputs:
        opened = open_input(config)
        try:
            ids |= opened.topic_ids(timeout_ms=options.request_timeout_ms)
        finally:
            opened.close()
    return ids
