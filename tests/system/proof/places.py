"""Whether services have all their places again, once all is healed: each kind of read, as often at once as may be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from tests.system.proof.every_read import AT_ONCE, PAUSE_S, at_once, every_read
from tests.system.proof.history import AskedAtOnce
from tests.system.proof.processes import Service

LIMIT_S: Final = 120.0
"""Time for which they are asked again: those whose readers have just left give their places back first."""

LEAST_S: Final = 30.0
"""Time that each kind has, however long the others took."""


def asked_at_once(services: Iterable[Service], application: str = "", limit_s: float = LIMIT_S) -> list[AskedAtOnce]:
    """Ask each service for each kind of read, and return what came of it within a time for all of them."""
    return asyncio.run(_asked(tuple(services), application, time.monotonic() + limit_s))


async def _asked(services: tuple[Service, ...], application: str, until_s: float) -> list[AskedAtOnce]:
    found: list[AskedAtOnce] = []
    for service in services:
        for kind in AT_ONCE:
            found.append(await _of(service, kind, application, until_s))
            if not found[-1].answered:
                break  # it has none of them back; the others may take as long
    return found


async def _of(service: Service, kind: str, application: str, until_s: float) -> AskedAtOnce:
    number, until_s = AT_ONCE[kind], max(until_s, time.monotonic() + LEAST_S)
    while True:
        try:
            request = (await every_read(service.port, application))[kind]
            lacking = await at_once(service.port, kind, request, number, until_s)
        except (OSError, LookupError, TimeoutError) as error:
            lacking = [f"it does not say which keys it has: {error!r}"] * number
        if not lacking or time.monotonic() > until_s:
            detail = lacking[0] if lacking else ""
            return AskedAtOnce(time.monotonic() * 1000, service.name, kind, number, number - len(lacking), detail)
        await asyncio.sleep(PAUSE_S)
