"""Seed nodes, which a service asks while Redis is unavailable: `host:port,host:port`, IPv6 in brackets (pure)."""

from __future__ import annotations

import re

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.words import HostInfo

MAX_SEEDS = 64
"""One seed that answers names all other nodes; a longer list is a mistake."""

_SEED = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]/@,]+)):(?P<port>[0-9]{1,5})")


def parse_seeds(text: str) -> tuple[HostInfo, ...]:
    """Return the seeds in `text`, each once. Raises SettingsError, which names the malformed seed."""
    found: dict[HostInfo, None] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        match = _SEED.fullmatch(part)
        port = 0 if match is None else int(match["port"])
        if match is None or not 1 <= port <= 65535:
            raise SettingsError(
                f"{part!r} is not a seed",
                where="seed",
                fix="Give nodes as host:port with commas between, an IPv6 address in brackets: n1:7101,[::1]:7101",
            )
        found[HostInfo(match["v6"] or match["host"], port)] = None
    if len(found) > MAX_SEEDS:
        raise SettingsError(f"there are {len(found)} seeds, above {MAX_SEEDS}", where="seed", fix="A few are enough")
    return tuple(found)
