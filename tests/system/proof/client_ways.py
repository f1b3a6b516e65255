"""The ways in which readers ask through the Python client, by their names in the history."""

from __future__ import annotations

from typing import Final

WAYS: Final = ("sync", "async", "sync direct", "async direct")
DIRECTLY: Final = "directly"
"""The router of an answer that came from a node itself."""

BARE: Final = "bare"
"""The argument of a load by which all of its sessions speak bare HTTP."""
