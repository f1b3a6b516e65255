"""A closed-loop HTTP load: wrk where it is installed, else the Python one of `load`, which drives half as much."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import get, run_load

# Each connection walks all paths; requests are built once.
_SCRIPT = """
local requests, at = {{}}, 0
init = function(args)
  for path in io.lines("{paths}") do requests[#requests + 1] = wrk.format("GET", path) end
end
request = function() at = at % #requests + 1; return requests[at] end
"""
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True, slots=True)
class Rates:
    """Answers per second, and latency percentiles."""

    per_second: float
    p50_ms: float
    p99_ms: float


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


def drive(port: int, paths: Sequence[str], *, connections: int, seconds: float) -> Rates:
    """Load a server. Raises RuntimeError when any answer is not a 2xx."""
    if not has_wrk():
        load = run_load(port, [get(path) for path in paths], connections=connections, seconds=seconds)
        if set(load.statuses) != {200}:
            raise RuntimeError(f"statuses {load.statuses}")
        return Rates(load.per_second, load.p50_ms, load.p99_ms)
    with tempfile.TemporaryDirectory(prefix="understudy-wrk-") as folder:
        listed, script = Path(folder) / "paths", Path(folder) / "load.lua"
        listed.write_text("".join(f"{path}\n" for path in paths))
        script.write_text(_SCRIPT.format(paths=listed))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}s", "--latency", "-s", str(script)]
        printed = subprocess.run(
            [*command, f"http://127.0.0.1:{port}"], capture_output=True, text=True, check=True, timeout=seconds + 60
        ).stdout
    if "Non-2xx" in printed or "Socket errors" in printed:
        raise RuntimeError(printed)
    per_second = float(_found(r"Requests/sec:\s+([\d.]+)", printed).group(1))
    return Rates(per_second, _percentile(50, printed), _percentile(99, printed))


def _percentile(percent: int, printed: str) -> float:
    number, unit = _found(rf"\s{percent}%\s+([\d.]+)(us|ms|s)", printed).groups()
    return float(number) * _UNITS[unit]


def _found(pattern: str, printed: str) -> re.Match[str]:
    found = re.search(pattern, printed)
    if found is None:
        raise RuntimeError(printed)
    return found
