"""Topics that were deleted and made anew: found by their ids, which the offset keeps.

A log that was made anew and has grown past a position looks like the one before it. Only its topic's id tells.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from understudy_aligned.inputs.opening import open_input
from understudy_aligned.inputs.protocol import DataLostError
from understudy_aligned.load_checks import check_inputs
from understudy_aligned.options import AlignedOptions

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


def lost_topics(options: AlignedOptions, ids: Mapping[str, str], topics: Collection[str]) -> Collection[str]:
    """Return topics of a logged batch that cannot be read again: made anew since they had these ids, or deleted.

    Raises DataLostError for them unless data may be lost. Topics that are named are not looked for: `load()` does that.
    """
    anew = made_anew(ids, _current_ids(options, ids)) if ids else frozenset()
    if anew:
        report_made_anew(anew, is_error=options.fail_on_data_loss)
    deleted = frozenset() if options.pattern is None else frozenset(topics) - check_inputs(options).keys()
    if deleted:
        report_lost(f"topics were deleted: {', '.join(sorted(deleted))}", is_error=options.fail_on_data_loss)
    return anew | deleted


def report_lost(what: str, *, is_error: bool) -> None:
    """Raise DataLostError for what does not exist any more if `is_error`, else log a warning."""
    if is_error:
        raise DataLostError(
            what,
            where="option topics",
            fix="Bring them back, or start with a new checkpoint; with fail_on_data_loss=false the query goes on "
            "without them",
        )
    log.warning("%s", what, extra={"action": "data-lost"})


def _current_ids(options: AlignedOptions, topics: Collection[str]) -> Mapping[str, str]:
    """Ask every server for the ids of these topics, over a new connection. Those that are unknown are left out."""
    ids: dict[str, str] = {}
    for config in options.inputs:
        opened = open_input(config)
        try:
            asked = [topic for topic in topics if topic in config.topics]
            ids |= opened.topic_ids(asked, timeout_ms=options.request_timeout_ms)
        finally:
            opened.close()
    return ids
