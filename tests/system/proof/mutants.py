"""Services with a planted bug, for the checker to find: `python -m tests.system.proof.mutants NAME node|router ...`.

The running code of that process is patched, then the ordinary command line runs; the project's code has no hooks for
it. Some bugs show only where replicas lie apart, so those nodes follow a few versions behind, and are honest about it.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.system.proof import (
    call_mutants,
    client_mutants,
    cluster_mutants,
    engine_mutants,
    kind_mutants,
    scan_mutants,
    watch_mutants,
)
from tests.system.proof.patching import patch
from tests.system.proof.subjects import COUNTS, KINDS, MOODS, SCATTERED

VERSIONS_BEHIND = {"node-1": 6, "node-2": 3, "node-3": 0}
"""Within `acceptable_recovery_lag`: they count as caught up."""

WATCH_S = 15.0
"""The time in which watches under a mutant bring enough events."""

HOUR_NS = 3600 * 10**9
PARTITIONS = 6


@dataclass(frozen=True, slots=True)
class Mutant:
    """What is patched in a node and in a router, the claim that it must break, the fault that shows it, and in the
    answers of which query and of which of its kinds of state it shows. `state_format`, `short_lived_bases` and `signed`
    are of the world that it needs, `read_s` how long it needs there if not as long as others, and `needs` what the load
    counts that has to have happened there.
    """

    node: tuple[Callable[[], None], ...]
    router: tuple[Callable[[], None], ...]
    breaks: str
    fault: str | None = None
    query: str = COUNTS.name
    kinds: tuple[str, ...] = ()
    state_format: str = "rocksdb"
    short_lived_bases: bool = False
    signed: bool = False
    read_s: float | None = None
    needs: str = ""
    client: tuple[Callable[[], None], ...] = ()
    """What is patched in the Python clients of its readers."""

    @property
    def place(self) -> tuple[str, str, bool, bool]:
        """What it is hunted in: mutants of one place share a world."""
        return self.query, self.state_format, self.short_lived_bases, self.signed


def _of_kinds(plant: Callable[[], None], *kinds: str) -> Mutant:
    return Mutant((plant,), (), "answers", query=KINDS.name, kinds=kinds)


def follow_behind() -> None:
    """Aim for an older version than the newest: what an overloaded node would do."""
    from understudy_node.replica.read_views import Progress

    behind = VERSIONS_BEHIND[sys.argv[sys.argv.index("--node-id") + 1]]
    target = vars(Progress)["target"].fget
    Progress.target = property(lambda self: max(1, target(self) - behind))  # type: ignore[method-assign,assignment]


def show_what_was_read_ahead() -> None:
    """Answer from the next version's changelog as soon as it was read, whether it is committed or not."""
    from understudy_node.replica.chosen_files import ChangelogReader
    from understudy_node.replica.read_views import Reading
    from understudy_node.stores.lookup import StoreReader

    ahead: dict[object, tuple[int, Mapping[bytes, bytes | None]]] = {}
    read_ahead, read_from = ChangelogReader.read_ahead, StoreReader.read_from

    def reading_ahead(self: ChangelogReader, latest: Any) -> Generator[None, None, None]:
        yield from read_ahead(self, latest)
        if self._ahead is not None:
            ahead[self._place.task] = (latest.version + 1, self._ahead.changes)

    def reading(self: StoreReader, partition: int, bound: Any, known_end: int = 0) -> Any:
        found = read_from(self, partition, bound, known_end)
        if not isinstance(found, Reading):
            return found
        version, changes = ahead.get(self.replicas[partition].task, (0, {}))
        if version != found.view.version + 1:
            return found
        stores: dict[str, Any] = {name: _Overlaid(store, changes) for name, store in found.view.stores.items()}
        return Reading(replace(found.view, stores=stores), found.lag, _restated(found.tail, version))

    ChangelogReader.read_ahead = reading_ahead  # type: ignore[method-assign]
    StoreReader.read_from = reading  # type: ignore[method-assign]


class _Overlaid:
    """A store with changes over it."""

    def __init__(self, store: Any, changes: Mapping[bytes, bytes | None]) -> None:
        self._store = store
        self._changes = changes

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._changes[key] if key in self._changes else self._store.get(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]


def state_the_version_before() -> None:
    """Say that a value is of the version before its own."""

    def by_one_less(task_view: Callable[..., Any]) -> Callable[..., Any]:
        def view(*arguments: Any, **named: Any) -> Any:
            made = task_view(*arguments, **named)
            return replace(made, stamp=_restated(made.stamp, made.version - 1))

        return view

    patch("understudy_node.replica.task_stores", "task_view", by_one_less)


def _restated(json: bytes, version: int) -> bytes:
    return re.sub(rb'"version":\d+', b'"version":%d' % version, json, count=1)


def forget_lag_bounds() -> None:
    """Route and ask as if the reader had not said how far behind it accepts."""
    _change_bounds(lambda bound: replace(bound, max_lag=None, max_staleness_ms=None))


def forget_positions() -> None:
    """Route and ask as if the reader had seen nothing yet."""
    _change_bounds(lambda bound: replace(bound, min_position=None, wait_ms=0))


def _change_bounds(change: Callable[[Any], Any]) -> None:
    from understudy_router.questions.lookup.service import RouterReads

    bound = RouterReads.bound
    RouterReads.bound = lambda self, route, params: change(bound(self, route, params))  # type: ignore[method-assign]


def compare_clocks() -> None:
    """Compute time lag from this host's wall clock, which is an hour slow, and the time of the newest commit."""

    def by_wall_clock(lag_of: Callable[..., Any]) -> Callable[..., Any]:
        def lag(version: int, end: Any, commit_time_ns: Callable[[int], int | None], **named: Any) -> Any:
            result = lag_of(version, end, commit_time_ns, **named)
            missed_ns = commit_time_ns(version + 1)
            if result.time_lag_ms is None or missed_ns is None:
                return result
            return replace(result, time_lag_ms=max(0, round((time.time_ns() - HOUR_NS - missed_ns) / 1e6)))

        return lag

    patch("understudy_node.replica.read_views", "lag_of", by_wall_clock)


def say_absent_for_others() -> None:
    """Look up a key of another node's partition in an own partition."""
    from understudy_node.stores.lookup import StoreReader

    read_from = StoreReader.read_from

    def reading(self: StoreReader, partition: int, bound: Any, known_end: int = 0) -> Any:
        return read_from(self, partition if partition in self.replicas else min(self.replicas), bound, known_end)

    StoreReader.read_from = reading  # type: ignore[method-assign]


def ask_the_wrong_node() -> None:
    """Ask the node that has the next partition."""

    def of_the_next(candidates_of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tables, operator_id, partition, now_ms: candidates_of(
            tables, operator_id, (partition + 1) % PARTITIONS, now_ms
        )

    patch("understudy_router.routing.choose", "candidates_of", of_the_next)


def stay_silent_when_refused() -> None:
    """Send no heartbeat while the bus refuses to store it."""
    from understudy_shared.bus.gossip import Gossip

    async def say(self: Gossip, heartbeat: Any) -> None:
        """Nothing."""

    Gossip.say = say  # type: ignore[method-assign]


def take_silence_for_death() -> None:
    """Drop a node that is silent on Redis, without asking it."""
    from understudy_shared.cluster.view import Silence

    Silence.due = lambda self, last, *, now_ms: []  # type: ignore[method-assign]
    Silence.is_unanswered = lambda self, node_id: True  # type: ignore[method-assign]


def leave_out_the_dead() -> None:
    """Ask no replica that is called dead, even when all of them are."""
    patch("understudy_router.routing.choose", "_may_live", lambda _: lambda dead, bound: False)


def believe_absurd_numbers() -> None:
    """Follow any assignment with a higher number; an own document that does not validate ends the beat."""
    from understudy_node.cluster.heartbeat import OwnMessages

    def end(self: OwnMessages, kind: str, error: Exception) -> None:
        raise error

    _believe_in("understudy_shared.cluster.view")
    patch("understudy_node.cluster.leader", "is_later", lambda _: lambda order, known: order > known)
    OwnMessages.cannot_say = end  # type: ignore[method-assign]


def route_by_absurd_numbers() -> None:
    """Route by any assignment with a higher number."""
    _believe_in("understudy_shared.cluster.view")


def _believe_in(module: str) -> None:
    patch(module, "is_plausible_order", lambda _: lambda order, known: True)


def forget_connection_limits() -> None:
    """Speak HTTP as uvicorn does by itself."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    def by_itself(_ours: Callable[..., Any]) -> Callable[..., Any]:
        return lambda guard, answers, **named: HttpToolsProtocol(**named)

    patch("understudy_shared.server.service", "HttpProtocol", by_itself)


MUTANTS = {
    "serve-uncommitted": Mutant((show_what_was_read_ahead,), (), "answers"),
    "off-by-one-version": Mutant((state_the_version_before,), (), "answers"),
    "not-found-from-wrong-host": Mutant((say_absent_for_others,), (ask_the_wrong_node,), "answers"),
    "ignore-bound": Mutant((follow_behind,), (forget_lag_bounds,), "bounds"),
    "compare-clocks": Mutant((follow_behind, compare_clocks), (), "time lag"),
    "silence-is-death": Mutant(
        (stay_silent_when_refused,),
        (take_silence_for_death, leave_out_the_dead),
        "availability",
        "redis-refuses-writes",
    ),
    "no-connection-limits": Mutant(
        (forget_connection_limits,), (forget_connection_limits,), "memory", "hostile-connections"
    ),
    "session-back": Mutant((follow_behind,), (forget_positions,), "sessions"),
    "believe-absurd-numbers": Mutant(
        (believe_absurd_numbers,),
        (route_by_absurd_numbers,),
        "availability",
        "absurd-messages",
    ),
    "all-histories-agree": Mutant(
        (cluster_mutants.believe_that_all_histories_agree,), (), "answers", "forked-checkpoint"
    ),
    "leave-unsigned-leases": Mutant(
        (cluster_mutants.leave_unsigned_leases,), (), "availability", "unsigned-lease", signed=True
    ),
    "believe-local-copies": Mutant(
        (engine_mutants.believe_local_copies,), (), "answers", "damaged-local-copy", state_format="hdfs"
    ),
    "compare-all-families": Mutant(
        (engine_mutants.compare_all_families,),
        (),
        "convergence",
        "added-variable",
        query=MOODS.name,
        state_format=MOODS.formats[0],
    ),
    "reuse-sections": Mutant((engine_mutants.reuse_sections,), (), "answers", short_lived_bases=True, read_s=60.0),
    "keep-cancelled-calls": Mutant((), (call_mutants.keep_cancelled_calls,), "places", "cancelling-reader"),
    "keep-cancelled-exports": Mutant((), (call_mutants.keep_cancelled_exports,), "places", "cancelling-reader"),
    "scan-what-is-shown": Mutant((scan_mutants.scan_what_is_shown,), (), "scans"),
    "lose-a-partition": Mutant((), (scan_mutants.lose_a_partition,), "scans", needs="scans whole"),
    "pass-a-part-over": Mutant((), (scan_mutants.pass_a_part_over,), "scans", needs="exports whole"),
    "begin-with-the-last-key": Mutant((scan_mutants.begin_with_the_last_key,), (), "scans", needs="scans in pages"),
    "forget-the-filter": Mutant((scan_mutants.forget_the_filter,), (), "scans", needs="filtered scans in pages"),
    "each-its-own-version": Mutant((follow_behind, scan_mutants.read_past_versions_as_shown), (), "snapshots"),
    "ignore-named-versions": Mutant((scan_mutants.read_past_versions_as_shown,), (), "bounds"),
    "miss-a-change": Mutant((watch_mutants.miss_a_change,), (), "watches", read_s=WATCH_S, needs="watches"),
    "heartbeat-before-its-event": Mutant(
        (watch_mutants.let_positions_run_ahead,), (), "watches", read_s=WATCH_S, needs="watches"
    ),
    "tell-a-change-twice": Mutant(
        (), (), "watches", read_s=WATCH_S, needs="watches gone on", client=(client_mutants.forget_what_was_told,)
    ),
    "follow-a-stale-assignment": Mutant(
        (say_absent_for_others,), (), "clients", client=(client_mutants.follow_an_old_assignment,)
    ),
    "keep-the-first-value": _of_kinds(kind_mutants.keep_the_first_value, "value"),
    "lose-an-element": _of_kinds(kind_mutants.lose_an_element, "list"),
    "reverse-lists": _of_kinds(kind_mutants.reverse_lists, "list"),
    "mix-up-entries": _of_kinds(kind_mutants.mix_up_entries, "map"),
    "forget-a-timer": _of_kinds(kind_mutants.forget_a_timer, "timers"),
    "end-sessions-early": _of_kinds(kind_mutants.end_sessions_early, "session"),
    "turn-matches-round": _of_kinds(kind_mutants.turn_matches_round, "join-side"),
    "expire-too-late": _of_kinds(kind_mutants.expire_too_late, "set"),
    "believe-one-partition": Mutant(
        (), (kind_mutants.believe_one_partition,), "answers", query=SCATTERED.name, kinds=("scattered",)
    ),
    "cut-pages": _of_kinds(kind_mutants.cut_pages, "list", "map", "session", "join-side", "timers"),
}


def main() -> None:
    """Plant the bug and become the service."""
    mutant = MUTANTS[sys.argv.pop(1)]
    for plant in mutant.node if sys.argv[1] == "node" else mutant.router:
        plant()
    from understudy.cli import main as understudy

    understudy()


if __name__ == "__main__":
    main()
