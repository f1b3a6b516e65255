"""Names the tests that failed in the last run of pytest, if they are few enough to be run again.

    python -m tools.few_failed && pytest --last-failed

Exits with 1 where more failed than FEW, or all passed: many failures are no accident.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FEW = 3

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def few_failed(last_failed: Path) -> list[str]:
    """Return the names of the tests that failed, sorted; an empty list where they are more than FEW, or unknown."""
    if not last_failed.is_file():
        return []
    found = sorted(json.loads(last_failed.read_text()))
    return found if len(found) <= FEW else []


if __name__ == "__main__":
    found = few_failed(LAST_FAILED)
    sys.stdout.write(" ".join(found) + "\n")
    sys.exit(0 if found else 1)
