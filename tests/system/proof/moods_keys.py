"""Stores of the query that gets another state variable at a restart, and questions to them (pure)."""

from __future__ import annotations

import random
from types import MappingProxyType
from typing import Final

from tests.system.proof.question import Question

SEEN, MOOD = "seen", "mood"
STORES: Final = MappingProxyType({SEEN: "value", MOOD: "added value"})
"""MOOD is there since the restart: a kind of its own, so that each claim must see answers of it."""

WORDS = 60
ROWS_PER_BATCH = 10
"""Few: for some time a part of the words has no mood, and a partition may get its first after the table."""


def choose_question(chance: random.Random, version: int) -> Question:
    """Choose a question that fits any version. One word in 30 never comes."""
    return Question(chance.choice(tuple(STORES)), (f"w{chance.randrange(WORDS + 2)}",))
