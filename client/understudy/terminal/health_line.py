"""A router's health in one line (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from understudy_shared.base.printable import printable


def health_line(report: Mapping[str, Any]) -> str:
    """Return the state of the whole: `all well`, or what is wrong, who is hurt, and what to do."""
    state, headline = str(report["state"]), printable(str(report["headline"]))
    return headline if state == "ok" else f"{state}: {headline}"
