"""A benchmark's figures as a file: every round, and on what they were taken.

One benchmark writes `{"machine", "versions", "commit", "rounds"}`, a whole run `"parts"` in their place:
for each benchmark its rounds, what it printed, what it skipped, how long it took, and what the host took away.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from understudy.demo.local_redis import find_server
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.extras import PACKAGE

Rounds = Mapping[str, Sequence[Mapping[str, float]]]
"""The figures of each round, by the name of what was measured."""

Report = Mapping[str, Any]
"""A file's document."""

PACKAGES = (PACKAGE, "uvicorn", "uvloop", "httptools", "fastapi", "pydantic", "redis", "rocksdict", "pyspark")
_TOOLS = {
    "wrk": ["wrk", "-v"],
    "nginx": ["nginx", "-v"],
    "java": ["java", "-version"],
    "maven": ["mvn", "--version"],
    "py-spy": ["py-spy", "--version"],
}


def machine() -> dict[str, str]:
    """Return the properties that figures depend on besides the code."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the measured and the measuring packages; "missing" for one that is not installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    tools = dict(_TOOLS)
    try:
        tools["redis"] = [str(find_server()), "--version"]
    except UnderstudyError:
        found["redis"] = "missing"
    return found | {tool: _version_of(command) for tool, command in tools.items()}


def write_report(path: Path, rounds: Rounds) -> None:
    """Write a report that `benchmarks.compare` reads."""
    write_document(path, {**described(), "rounds": rounds})


def described() -> dict[str, Any]:
    """Return the beginning of every report."""
    return {"machine": machine(), "versions": versions(), "commit": _commit()}


def write_document(path: Path, document: Report) -> None:
    """Write a report whole, or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(document, indent=1) + "\n")
    draft.replace(path)


def rounds_of(report: Report) -> Rounds:
    """Return all rounds of a report; those of a whole run under the name of their part."""
    if "rounds" in report:
        found: Rounds = report["rounds"]
        return found
    return {
        f"{title.partition(':')[0]}: {subject}": rounds
        for title, part in report["parts"].items()
        for subject, rounds in part["rounds"].items()
    }


def skips_in(printed: str) -> list[str]:
    """Return the lines in which a benchmark reports what it left out."""
    return [line.removeprefix("skipped: ") for line in printed.splitlines() if line.startswith("skipped: ")]


def markdown(report: Report, goals: str) -> str:
    """Render a whole run for people."""
    return "\n".join(_markdown(report, goals)) + "\n"


def _markdown(report: Report, goals: str) -> Iterator[str]:
    machine = report["machine"]
    yield f"# Benchmarks of {report['commit']}\n"
    yield f"{machine['platform']}, {machine['processor']}, {machine['cores']} cores, Python {machine['python']}.\n"
    yield ", ".join(f"{name} {found}" for name, found in report["versions"].items()) + "\n"
    yield f"## Goals\n\n{goals}"
    for title, part in report["parts"].items():
        yield f"\n## {title}\n"
        yield f"{part['status']} in {part['seconds']:.0f} s; the host took {part['stolen']:.1%} of the cores away.\n"
        yield from (f"- skipped: {what}" for what in part["skipped"])
        if part["printed"].strip():
            yield f"```\n{part['printed'].strip()}\n```"


def stolen_s() -> tuple[float, float]:
    """Return the seconds of all cores that the host took away, and all of their seconds, since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return fields[7] * tick_s, sum(fields) * tick_s


def _version_of(command: Sequence[str]) -> str:
    if shutil.which(command[0]) is None:
        return "missing"
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = re.search(r"\d+\.\d+[\w.]*", done.stdout + done.stderr)
    return found.group() if found else "unknown"


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
