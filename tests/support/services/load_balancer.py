"""What a load balancer does with a router that it finds out of service: it turns to another."""

from __future__ import annotations


def is_out_of_service(status: int, body: bytes) -> bool:
    """Whether a router says that it is about to go or has only just come: its /readyz says so, too."""
    return status == 503 and (b'"stopping"' in body or (b'"not-initialised"' in body and b'"candidates"' not in body))
