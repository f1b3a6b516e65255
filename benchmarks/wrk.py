"""A closed-loop HTTP load: wrk where it is installed, else the Python one of `load`, which drives half as much."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import get, post, run_load

# Each connection walks all requests; they are built once, of a line each: a path, or the body of a POST.
_SCRIPT = """
local requests, at = {{}}, 0
init = function(args)
  for line in io.lines("{lines}") do requests[#requests + 1] = {request} end
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
        return _by_python(port, [get(path) for path in paths], connections, seconds)
    return _by_wrk(port, 'wrk.format("GET", line)', [path.encode() for path in paths], connections, seconds)


def drive_posts(port: int, path: str, bodies: Sequence[bytes], *, connections: int, seconds: float) -> Rates:
    """Load a server with JSON bodies of one line each. Raises RuntimeError when any answer is not a 2xx."""
    if not has_wrk():
        return _by_python(port, [post(path, body) for body in bodies], connections, seconds)
    request = f'wrk.format("POST", "{path}", {{["content-type"] = "application/json"}}, line)'
    return _by_wrk(port, request, bodies, connections, seconds)


def _by_python(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> Rates:
    load = run_load(port, requests, connections=connections, seconds=seconds)
    if set(load.statuses) != {200}:
        raise RuntimeError(f"statuses {load.statuses}")
    return Rates(load.per_second, load.p50_ms, load.p99_ms)


def _by_wrk(port: int, request: str, lines: Sequence[bytes], connections: int, seconds: float) -> Rates:
    with tempfile.TemporaryDirectory(prefix="understudy-wrk-") as folder:
        listed, script = Path(folder) / "lines", Path(folder) / "load.lua"
        listed.write_bytes(b"".join(line + b"\n" for line in lines))
        script.write_text(_SCRIPT.format(lines=listed, request=request))
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
