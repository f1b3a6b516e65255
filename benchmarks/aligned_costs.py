"""CPU and memory of the processes of Spark: the driver (the JVM, executors included), the planner, and workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KINDS = ("driver", "planner", "workers")
PLANNERS = ("understudy_pipeline.accelerator.planner", "python_streaming_source_runner")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_MIB = 2**20 / os.sysconf("SC_PAGE_SIZE")
_LOOK_S = 0.2


@dataclass(slots=True)
class Cost:
    """The use of processes of one kind: seconds of CPU, and the most MiB that one of them held."""

    cpu_s: float = 0.0
    memory_mib: float = 0.0


class Watch:
    """A look at the processes, again and again, from its construction until `stop`."""

    def __init__(self) -> None:
        self._most = dict.fromkeys(KINDS, 0.0)
        self._kinds: dict[int, str] = {}
        self._before = self._looked()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> Mapping[str, Cost]:
        """Return what was used, by kind."""
        self._stopped.set()
        self._thread.join()
        after = self._looked()
        return {kind: Cost(max(0.0, after[kind] - self._before[kind]), self._most[kind]) for kind in KINDS}

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            self._looked()

    def _looked(self) -> Mapping[str, float]:
        """Note the memory that processes hold; return the seconds of CPU until now, by kind. The children of the JVM
        that have ended were planners: workers stay as long as the session.
        """
        cpu_s = dict.fromkeys(KINDS, 0.0)
        for pid, seen in processes_of_spark():
            # A process that has just ended has no command any more, and its CPU is not yet its parent's.
            kind = self._kinds[pid] = seen or self._kinds.get(pid, "workers")
            if stat := _stat(pid):
                own_s = (int(stat[11]) + int(stat[12])) * _TICK_S
                ended_s = (int(stat[13]) + int(stat[14])) * _TICK_S
                cpu_s[kind] += own_s
                cpu_s["planner" if kind == "driver" else kind] += ended_s
                self._most[kind] = max(self._most[kind], int(stat[21]) / _MIB)
        return cpu_s


@contextmanager
def watched(costs: dict[str, Cost]) -> Iterator[None]:
    """Put into `costs` what the block uses."""
    watch = Watch()
    try:
        yield
    finally:
        costs.update(watch.stop())


def processes_of_spark() -> Iterator[tuple[int, str]]:
    """Yield the process and the kind of Spark's JVM, and of all that come from it; no kind of one that has ended."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            parents.setdefault(int(stat[1]), []).append(int(entry.name))
    waiting = [pid for pid in parents.get(os.getpid(), []) if "SparkSubmit" in _command(pid)]
    while waiting:
        pid = waiting.pop()
        yield pid, _kind(_command(pid))
        waiting += parents.get(pid, [])


def _kind(command: str) -> str:
    if not command:
        return ""
    if "SparkSubmit" in command:
        return "driver"
    return "planner" if any(name in command for name in PLANNERS) else "workers"


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
