"""The weight of the Python client: the time to import it, and the size that `pip install understudy-spark` takes.

    python -m benchmarks.client_weight [--rounds 5]

Import times are those of a new interpreter, less that of one that imports nothing, beside httpx and redis-py. The size
is that of the files of the package and of all that it requires without an extra, as they are installed here.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from understudy_shared.base.extras import PACKAGE

ROOT = Path(__file__).parents[1]
OWN = ("client", "shared", "node", "router", "pipeline")
"""The source roots of the wheel."""

IMPORTS = ("from understudy import Client", "from understudy import AsyncClient", "import httpx", "import redis")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    nothing = median_s("pass", rounds)
    print("import, median of new interpreters in ms, less one that imports nothing")
    for code in IMPORTS:
        print(f"  {code:34s} {(median_s(code, rounds) - nothing) * 1000:7.1f}")
    sizes = {name: size_bytes(name) for name in sorted(required(PACKAGE))}
    own = sum(file.stat().st_size for part in OWN for file in (ROOT / part).glob("*/**/*.py"))
    whole = own + sum(sizes.values())
    print(f"installed without an extra, in MB: {whole / 1e6:.1f}, of it our own code {own / 1e6:.1f}")
    for name, size in sorted(sizes.items(), key=lambda each: -each[1]):
        print(f"  {name:34s} {size / 1e6:7.1f}")


def median_s(code: str, rounds: int) -> float:
    """Return the time of a new interpreter that runs some code."""
    times_s = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)


def required(name: str) -> set[str]:
    """Return the distributions that one requires without an extra, and those that they do."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for line in metadata.requires(waiting.pop()) or ():
            each = _NAME.match(line)
            marker = line.partition(";")[2]
            if each is None or "extra" in marker or not _applies(marker) or each[0] in found:
                continue
            found.add(each[0])
            waiting.append(each[0])
    return found


def _applies(marker: str) -> bool:
    """Whether a requirement is one of this machine: its package is here if so."""
    return not marker or "win32" not in marker


def size_bytes(name: str) -> int:
    """Return the size of the files of a distribution, without compiled modules, which pip makes."""
    files = metadata.files(name) or ()
    paths = [Path(str(each.locate())) for each in files if each.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


if __name__ == "__main__":
    main()
