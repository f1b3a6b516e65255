"""The topics and partitions of a query that reads topics by a pattern, or single partitions (pure).

The offset keeps the topics that a pattern has found, in the order in which they were found, which breaks ties. They are
in its fingerprint, where other queries have their option `topics`. One rule holds for both: topics are only appended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from understudy_aligned.fingerprint import TOPICS
from understudy_aligned.offset import OffsetError, SourceOffset
from understudy_aligned.options import AlignedOptions

_KAFKA = "kafka:"
"""The prefix of Kafka's topics in a fingerprint."""


class NewTopics(NamedTuple):
    """The topics that a pattern found and that were not read before."""

    joined: tuple[str, ...]
    """New topics that are read from now on."""

    waiting: Mapping[str, int]
    """The partition counts of topics that do not fit."""


def join_topics(topics: Collection[str], counts: Mapping[str, int], *, is_global: bool) -> NewTopics:
    """Decide which of the topics that were found, by their `counts`, are read beside `topics`.

    Partitions of one number are merged, so a topic joins when it has as many as there are tasks. While no topic is
    read, the first by name decides.
    """
    new = sorted(counts.keys() - set(topics))
    common = min((counts[topic] for topic in topics if topic in counts), default=counts[new[0]] if new else 0)
    joined = tuple(topic for topic in new if is_global or counts[topic] == common)
    return NewTopics(joined, {topic: counts[topic] for topic in new if topic not in joined})


def with_topics(
    fingerprint: Mapping[str, object], options: AlignedOptions, topics: Iterable[str]
) -> Mapping[str, object]:
    """Return the fingerprint for an offset by which these topics were found. Without a pattern it is the same."""
    return fingerprint if options.pattern is None else {**fingerprint, TOPICS: [_KAFKA + topic for topic in topics]}


def topics_at(options: AlignedOptions, offset: SourceOffset) -> tuple[str, ...]:
    """Return the topics that are read at an offset, in the order that breaks ties."""
    return options.topics if options.pattern is None else tuple(each.removeprefix(_KAFKA) for each in _saved(offset))


def check_still_read(options: AlignedOptions, offset: SourceOffset) -> None:
    """Raise OffsetError if the options leave out a topic or a partition that the query has read."""
    if options.pattern is not None:
        option, pattern = "topics_pattern", options.pattern
        left_out = [
            each for each in _saved(offset) if not (each.startswith(_KAFKA) and each.removeprefix(_KAFKA) in pattern)
        ]
    else:
        option, assigned = "assign", options.assigned
        left_out = [] if assigned is None else [str(tp) for tp in sorted(offset.cursors.keys() - assigned)]
    if left_out:
        raise OffsetError(
            f"{option} leaves out what this query has read: {', '.join(left_out)}",
            where=f"option {option}",
            fix=f"Let {option} name that, too, or begin a new checkpoint",
        )


def _saved(offset: SourceOffset) -> list[str]:
    found = offset.fingerprint.get(TOPICS)
    return [str(each) for each in found] if isinstance(found, list) else []
