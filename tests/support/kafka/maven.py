"""Jars that come through Maven, once, into the checkout's `.cache`: of Kafka's broker, and of Kafka Streams."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support.repository import ROOT

_FETCH_LIMIT_S = 180


@cache
def fetched_jars(pom: Path, name: str) -> Path | str:
    """Their folder, or why there is none. One process fetches at a time; the folder appears when it is complete."""
    jars = ROOT / ".cache" / name
    if jars.exists():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        return "no Maven"
    jars.parent.mkdir(exist_ok=True)
    with (jars.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.exists():
            fetching = jars.with_name(f"{name}.fetching")
            shutil.rmtree(fetching, ignore_errors=True)
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fetching}"]
            command = [maven, "-q", "-B", "-f", str(pom), *goal]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_LIMIT_S, check=False)
            except subprocess.TimeoutExpired:
                return f"no Maven: it took longer than {_FETCH_LIMIT_S} s"
            if done.returncode != 0:
                return f"no Maven: {(done.stdout + done.stderr).strip()[:200]}"
            fetching.rename(jars)
    return jars
