"""Which keys the query of every kind has at which version, and how readers ask for them (pure).

A word is of a slot of event time, as the keys of the query of counts are: each batch brings rows of one second, a slot
lasts for some batches, and some time later nothing is left of its words.
"""

from __future__ import annotations

import random

from tests.system.proof.keys import START, slot_text
from tests.system.proof.question import Question

SLOT_S = 20
WATERMARK_S = 8
TIMER_S = 6
WORDS = 30
"""So many words come in each slot."""
PLACES = 4
ROWS_PER_BATCH = 24

STORES = {
    "op0.left": "join-side",
    "op0.right": "join-side",
    "op1": "set",
    "op2": "session",
    "total": "value",
    "recent": "list",
    "places": "map",
    "op3.timers": "timers",
}
"""The kind of state of each store."""

SLICE_S = 4
SCATTERED = "scattered"
"""The kind of the values whose keys lie where a part of them hashes to."""

SCATTERED_STORES = {**STORES, "op4": SCATTERED}
"""The same of the query of which Spark may have put each key into any partition."""

WITH_PAGES = frozenset({"join-side", "session", "list", "map", "timers"})
"""Kinds of which a key has several elements."""

LIVE_SLOTS = 1 + -(-(WATERMARK_S + TIMER_S) // SLOT_S)


def choose_question(chance: random.Random, version: int) -> Question:
    """What to ask when `version` is the newest: mostly for words that live, for some that are gone or not yet there."""
    store = chance.choice(tuple(STORES))
    newest = max(0, version - 1) // SLOT_S
    slot = chance.randint(max(0, newest - LIVE_SLOTS), newest) if chance.random() > 0.02 else newest + 1
    key: tuple[str, ...] = (word_of(slot, chance.randrange(WORDS)),)
    if STORES[store] == "map" and chance.random() < 0.5:
        return Question(store, (*key, f"p{chance.randrange(PLACES)}"))
    in_pages = STORES[store] in WITH_PAGES and chance.random() < 0.3
    return Question(store, key, limit=chance.randint(1, 3) if in_pages else None)


def word_of(slot: int, number: int) -> str:
    """A word of a slot."""
    return f"s{slot}w{number}"


def choose_scattered_question(chance: random.Random, version: int) -> Question:
    """Choose what to ask when all keys are scattered: one in five for a word of a slice of event time."""
    if chance.random() > 0.2:
        return choose_question(chance, version)
    newest = max(0, version - 1) // SLICE_S * SLICE_S
    since_s = max(0, newest - chance.randrange(1 + WATERMARK_S // SLICE_S) * SLICE_S)
    word = word_of(since_s // SLOT_S, chance.randrange(WORDS))
    return Question("op4", (slot_text(int(START.timestamp()) + since_s), word))
