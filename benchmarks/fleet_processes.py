"""The processes of `benchmarks.fleet`: `understudy node` and `router`, and what they use."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.services.command_line import Serving, serving
from tests.support.services.process_table import processes_below

from benchmarks.servers import Server

STOP_LIMIT_S = 60.0

Start = Callable[[str, str, Sequence[str]], Serving]
"""The start of a `node` or `router` with an id and further arguments, until it says that it is ready."""


def cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU of processes and of all that they started."""
    everyone = {pid for each in pids for pid in (each, *processes_below(each))}
    return sum(Server(0, pid).cpu_s() for pid in everyone)


@dataclass(frozen=True, slots=True)
class Use:
    """The resident memory of processes, in which a page that several share counts once, and their CPU in a minute."""

    memory_bytes: float
    private_bytes: float
    """The part that no other process has: it grows with their number, and the rest does not."""
    cpu_s_per_minute: float

    def __add__(self, other: Use) -> Use:
        return Use(
            self.memory_bytes + other.memory_bytes,
            self.private_bytes + other.private_bytes,
            self.cpu_s_per_minute + other.cpu_s_per_minute,
        )

    def times(self, factor: float) -> Use:
        """Compute the use of so many times as many processes of the kind."""
        further_bytes = self.private_bytes * (factor - 1)
        return Use(
            self.memory_bytes + further_bytes, self.private_bytes + further_bytes, self.cpu_s_per_minute * factor
        )


@contextmanager
def services(folder: Path, redis_url: str) -> Iterator[Start]:
    """Start processes over one Redis until the block ends; then all of them end at once, in good order."""
    with ExitStack() as stack:
        running: list[Serving] = []

        def start(command: str, name: str, arguments: Sequence[str]) -> Serving:
            named = ["--redis", redis_url, f"--{command}-id", name, *arguments]
            running.append(stack.enter_context(serving(named, folder / name, command=command)))
            return running[-1]

        try:
            yield start
        finally:
            for each in running:
                each.process.send_signal(signal.SIGTERM)
            for each in running:
                each.process.wait(STOP_LIMIT_S)


def port_of(service: Serving) -> int:
    return int(service.url.rpartition(":")[2])


def used(pids: Mapping[str, Sequence[int]], seconds: float) -> dict[str, Use]:
    """Measure by kind for so long what processes and those that they started use; the memory at its end."""
    before_s, began_s = {kind: cpu_s(each) for kind, each in pids.items()}, time.monotonic()
    time.sleep(seconds)
    after_s, minutes = {kind: cpu_s(each) for kind, each in pids.items()}, (time.monotonic() - began_s) / 60
    return {kind: Use(*memory_bytes(pids[kind]), (after_s[kind] - before_s[kind]) / minutes) for kind in pids}


def memory_bytes(pids: Sequence[int]) -> tuple[int, int]:
    """Return the resident memory of processes and of those that they started, and its private part."""
    everyone = {pid for each in pids for pid in (each, *processes_below(each))}
    sums = dict.fromkeys(("Pss", "Private_Clean", "Private_Dirty"), 0)
    for pid in everyone:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, value = line.split(":")
            if name in sums:
                sums[name] += int(value.split()[0]) * 1024
    return sums["Pss"], sums["Private_Clean"] + sums["Private_Dirty"]
