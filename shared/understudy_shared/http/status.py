"""The answer of /readyz (data)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Status(NamedTuple):
    """The reasons why a service is not ready, empty when it is; and the causes by which it is degraded."""

    reasons: tuple[str, ...] = ()
    causes: Mapping[str, str] = {}

    @property
    def http_status(self) -> int:
        return 503 if self.reasons else 200

    def document(self) -> dict[str, object]:
        """Return the answer of /readyz."""
        degraded = "; ".join(self.causes.values()) or None
        return {"ready": not self.reasons, "reasons": list(self.reasons), "degraded": degraded}
