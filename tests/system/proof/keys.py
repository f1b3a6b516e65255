"""Which keys the proof's query has at which version: what a reader must know to ask for some that live (pure).

A key is a slot of event time and a word. Each batch brings `ROWS_PER_BATCH` rows of one second of event time, so a slot
is counted during `SLOT_S` batches, stays for a while, and is removed when the watermark has passed it.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime

from tests.system.proof.question import Question

STORE = "op0"
SLOT_S = 20
WATERMARK_S = 60
WORDS = 200
ROWS_PER_BATCH = 60
START = datetime(2026, 1, 1, tzinfo=UTC)

Key = tuple[str, str]


def slot_text(since_epoch_s: int) -> str:
    """The beginning of a slot, as answers print it."""
    return datetime.fromtimestamp(since_epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


def choose_key(chance: random.Random, version: int) -> Key:
    """A key to ask for when `version` is the newest: nearly all live, some just removed, a few not yet there."""
    newest = max(0, version - 1) // SLOT_S
    oldest = max(0, newest - WATERMARK_S // SLOT_S)
    slot = chance.randint(oldest, newest) if chance.random() > 0.02 else newest + 1
    return slot_text(int(START.timestamp()) + slot * SLOT_S), f"w{chance.randrange(WORDS)}"


def choose_question(chance: random.Random, version: int) -> Question:
    """The question for such a key."""
    return Question(STORE, choose_key(chance, version))
