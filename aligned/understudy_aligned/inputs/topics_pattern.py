"""Kafka topics that a regular expression names, as with `subscribePattern` of Spark's Kafka source (pure)."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

from understudy_shared.base.errors import SettingsError

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics, which match no pattern."""

_NESTED = re.compile(r"\[[^\]]*\[")
"""Java's union of sets, `[a-c[x-z]]`. Python takes the inner bracket for a character, which is in no topic's name."""


@dataclass(frozen=True, slots=True)
class TopicsPattern:
    """The topics in whose names a regular expression (Python's `re`) is found, anywhere: `^` and `$` bind it.

    Spark's source looks for its pattern in the same way. Raises SettingsError for an invalid expression.
    """

    text: str

    def __post_init__(self) -> None:
        try:
            if _NESTED.search(self.text):
                raise re.error("a set in a set is Java's")
            with warnings.catch_warnings():
                # Java's [a-z&&[^b]] has another meaning in Python, which warns of it.
                warnings.simplefilter("error", FutureWarning)
                re.compile(self.text)
        except (re.error, FutureWarning, OverflowError, RecursionError) as error:
            raise SettingsError(
                f"'{self.text}' is not a regular expression: {error}",
                where="option topics_pattern",
                fix="Write it in the syntax of Python's re, which is nearly Java's, like 'flights-.*'",
            ) from error

    def __contains__(self, topic: object) -> bool:
        """Whether this is the name of a topic that the pattern names."""
        return isinstance(topic, str) and topic not in INTERNAL_TOPICS and re.search(self.text, topic) is not None
