"""A benchmark's figures as a file: every round, and on what they were taken."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

Rounds = Mapping[str, Sequence[Mapping[str, float]]]
"""The figures of each round, by the name of what was measured."""


def machine() -> dict[str, str]:
    """What figures depend on besides the code."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }


def write_report(path: Path, rounds: Rounds) -> None:
    """Write a report that `benchmarks.compare` reads."""
    document = {"machine": machine(), "commit": _commit(), "rounds": rounds}
    path.write_text(json.dumps(document, indent=1) + "\n")


def _processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return names[0] if names else "unknown processor"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip() or "unknown"
