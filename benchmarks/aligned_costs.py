"""CPU and memory of a benchmark's processes: the broker, the driver (the JVM, executors included), the planner, and
workers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

KINDS = ("broker", "driver", "planner", "workers")
PLANNERS = ("understudy_aligned.accelerator.planner", "python_streaming_source_runner")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_MIB = 2**20 / os.sysconf("SC_PAGE_SIZE")
_LOOK_S = 0.2


@dataclass(slots=True)
class Cost:
    """The use of processes of one kind: seconds of CPU, those of them in the kernel, and the most MiB that one held."""

    cpu_s: float = 0.0
    kernel_s: float = 0.0
    memory_mib: float = 0.0


class _Used(NamedTuple):
    """Seconds of CPU until now."""

    user_s: float = 0.0
    kernel_s: float = 0.0

    def plus(self, ticks: Sequence[str]) -> _Used:
        user, kernel = map(int, ticks)
        return _Used(self.user_s + user * _TICK_S, self.kernel_s + kernel * _TICK_S)


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
        after, before = self._looked(), self._before
        return {
            kind: Cost(
                max(0.0, sum(after[kind]) - sum(before[kind])),
                max(0.0, after[kind].kernel_s - before[kind].kernel_s),
                self._most[kind],
            )
            for kind in KINDS
        }

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            self._looked()

    def _looked(self) -> Mapping[str, _Used]:
        """Note the memory that processes hold; return the seconds of CPU until now, by kind. The children of the JVM
        that have ended were planners: workers stay as long as the session.
        """
        used = dict.fromkeys(KINDS, _Used())
        for pid, seen in (*processes_of_spark(), *_brokers()):
            # A process that has just ended has no command any more, and its CPU is not yet its parent's.
            kind = self._kinds[pid] = seen or self._kinds.get(pid, "workers")
            if stat := _stat(pid):
                of_ended = "planner" if kind == "driver" else kind
                used[kind] = used[kind].plus(stat[11:13])
                used[of_ended] = used[of_ended].plus(stat[13:15])
                self._most[kind] = max(self._most[kind], int(stat[21]) / _MIB)
        return used


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
    parents = _children()
    waiting = [pid for pid in parents.get(os.getpid(), []) if "SparkSubmit" in _command(pid)]
    while waiting:
        pid = waiting.pop()
        yield pid, _kind(_command(pid))
        waiting += parents.get(pid, [])


def _brokers() -> Iterator[tuple[int, str]]:
    """Yield the brokers that this process has started."""
    yield from ((pid, "broker") for pid in _children().get(os.getpid(), []) if "kafka.Kafka" in _command(pid))


def _children() -> dict[int, list[int]]:
    """Return the processes that each process has started."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            found.setdefault(int(stat[1]), []).append(int(entry.name))
    return found


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
