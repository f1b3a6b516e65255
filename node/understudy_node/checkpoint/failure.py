"""The meaning of a failed request to a store of files, for its reader (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

CONNECTION = "Check that the node can reach the endpoint; it asks again by itself"
THROTTLED = "The node asks again by itself, more slowly; if it persists, raise the store's limits or use fewer nodes"
PROVIDER = "Check that the node can reach it, and the files that the identity names; it asks again by itself"
CREDENTIALS = (
    "Renew the credentials where they come from: files and roles are read again by themselves, the environment needs a "
    "restart"
)


class Meaning(Enum):
    """The consequence of a failure."""

    TRY_AGAIN = "try-again"
    OPEN_AGAIN = "open-again"
    """Try again, by another connection: this one may never answer."""
    REFUSED = "refused"
    """The credentials, or what they allow: new ones may help."""
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request. `reason` and `fix` are fit for messages."""

    meaning: Meaning
    reason: str
    fix: str
