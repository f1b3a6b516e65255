"""What every generated client asks a service that serves `HandmadePairs`, and what it has to understand (pure)."""

from __future__ import annotations

from typing import Any

VERSION = 3
WORD, NUMBER = "word-0", 7
PAIR = f'["{WORD}", {NUMBER}]'
MISSING = f'{{"word": "{WORD}", "number": 0}}'
KEYS: list[Any] = [[WORD], {"word": "nobody"}, [NUMBER]]
"""Of `op0`: one that is there, one that is not, and one that does not fit."""

UNDERSTOOD = {
    "one column": ["found", WORD, VERSION],
    "one column, under bounds": ["found", WORD, VERSION],
    "two columns": ["found", WORD, VERSION * NUMBER],
    "absent": ["absent", "nobody"],
    "absent, exact form": ["absent", WORD],
    "no such store": ["problem", "unknown-store"],
    "batch": [["found", WORD, VERSION], ["absent", "nobody"], ["problem", "bad-key"]],
    "compact batch": [["found", WORD, VERSION], ["absent", "nobody"], ["problem", "bad-key"]],
    "refused": ["problem", "bad-bound"],
    "stores": ["op0", "op1"],
}
"""By question."""
