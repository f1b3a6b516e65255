"""Facts that this process knows by itself: versions, the machine, and the settings that are in force here."""

from __future__ import annotations

import os
import platform
import re
import sys
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

from understudy.debug.redaction import Redaction
from understudy.services.in_force import in_force
from understudy.services.settings import FLAGS_OF, PREFIX, unknown_variables
from understudy_shared.base.extras import PACKAGE


def versions() -> dict[str, Any]:
    """Return the versions of the package, of Python, of the system and of every installed package."""
    installed = {each.metadata["Name"]: each.version for each in distributions() if each.metadata["Name"]}
    return {
        "understudy": version(PACKAGE),
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": dict(sorted(installed.items(), key=lambda each: each[0].lower())),
    }


def settings(config: Path | None, environ: Mapping[str, str], redaction: Redaction) -> dict[str, Any]:
    """Return the settings that differ from their defaults here, for each service, and what is unknown.

    A service that runs elsewhere has others: run this where it runs, with its variables and its file.
    """
    file = {} if config is None else tomllib.loads(config.read_text(encoding="utf-8"))
    found: dict[str, Any] = {}
    for service, table in FLAGS_OF.items():
        rows = in_force(table, {}, environ, file, str(config or ""))
        found[service] = {
            row.name: {"value": redaction.value(row.value, row.name), "from": f"{row.source} {row.where}".strip()}
            for row in rows
            if row.source != "default"
        }
    others = sorted(name for name in environ if re.match(rf"{PREFIX}|OTEL_|SSL_CERT|\w+_proxy$", name, re.IGNORECASE))
    unknown = [redaction.text(line) for line in unknown_variables(environ)]
    return {"settings": found, "variables_that_are_set": others, "unknown": unknown}
