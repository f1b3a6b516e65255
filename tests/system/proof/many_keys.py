"""The keys of the query with very many of them, and what readers ask for (pure)."""

from __future__ import annotations

import random

from tests.system.proof.keys import STORE
from tests.system.proof.question import Question

KEYS = 1_000_000
"""All of them come in the first batch; each later one changes a few."""

ROWS_PER_BATCH = 20


def choose_question(chance: random.Random, version: int) -> Question:
    """Choose a key. One in a thousand never comes."""
    return Question(STORE, (str(chance.randrange(KEYS + KEYS // 1000)),))
