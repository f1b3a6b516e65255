"""The choice between two names of one setting, when a proposal renamed it (KIP-770's `StreamsConfigUtils`)."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def resolve(new_name: str, new: T | None, old_name: str, old: T | None) -> tuple[T | None, str | None]:
    """Return the value that counts, and a warning; None is "not set", so `(None, None)` leaves the default.

    A value is set when it was given, whatever the default is: callers pass None for what was not given. The new name
    wins, and it is worth a warning only when the two differ. The old name alone counts, with a warning.
    """
    if old is None:
        return new, None
    if new is None:
        return old, f"{old_name} is deprecated: use {new_name}"
    if new == old:
        return new, None
    return new, f"{new_name} and the deprecated {old_name} are both set and differ; {new_name} is used"
