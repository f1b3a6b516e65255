"""Which replicas cannot advance: those that fail on and on, and those of which nothing moves, behind a known end."""

from __future__ import annotations

from dataclasses import dataclass, field

from understudy_node.replica.task import FAILING_RETRIES, SILENT_MS, Stall

RETRY_MS = 1_000


@dataclass
class Replica:
    """One that is looked at every second."""

    stall: Stall = field(default_factory=Stall)
    now_ms: float = 0.0
    version: int | None = 4
    steps: int = 0
    fails: bool = False
    lags: bool = True
    waits: bool = False

    def after(self, ms: float) -> bool:
        """Look each retry for so long; the last verdict."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.now_ms += RETRY_MS
            self.look()
        return self.stall.is_now

    def look(self) -> None:
        self.stall.look(
            lags=self.lags,
            version=self.version,
            steps=self.steps,
            fails=self.fails,
            waits=self.waits,
            now_ms=self.now_ms,
            retry_ms=RETRY_MS,
        )


def test_a_replica_that_fails_at_each_retry_is_stalled_after_so_many_though_its_steps_go_on() -> None:
    replica = Replica(fails=True)
    replica.look()
    for _ in range(FAILING_RETRIES - 1):
        replica.steps += 3
        assert not replica.after(RETRY_MS)
    replica.steps += 3
    assert replica.after(RETRY_MS)


def test_a_slow_restore_that_goes_on_step_by_step_is_never_stalled() -> None:
    replica = Replica(version=None, waits=True)
    for _ in range(100):
        replica.steps += 1
        assert not replica.after(SILENT_MS - RETRY_MS)


def test_one_whose_steps_never_end_is_stalled_unless_it_only_waits_for_its_turn() -> None:
    running, waiting = Replica(), Replica(waits=True)
    running.look()
    assert not running.after(SILENT_MS - RETRY_MS)
    assert running.after(RETRY_MS)
    assert not waiting.after(10 * SILENT_MS)
    running.waits = True  # as it does since it is not RUNNING any more
    assert running.after(10 * SILENT_MS)
    running.steps += 1
    assert not running.after(RETRY_MS)
