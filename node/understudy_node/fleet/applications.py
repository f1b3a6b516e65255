"""The applications of a process: which are wanted, and the life of each as a task of its own.

A task opens its application, serves it until other settings are wanted or it is removed, and ends it. An application
that fails is tried again with growing pauses; no other notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

from understudy_node.fleet.application import NodeApplication, Turns
from understudy_shared.base.errors import UnderstudyError
from understudy_shared.fleet.applications_file import ApplicationSpec
from understudy_shared.fleet.dispatching import Fleet

log = logging.getLogger(__name__)

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
END_S = 20.0
"""Time in which all applications end together when the process does."""

Build = Callable[[ApplicationSpec], NodeApplication]


class Applications:
    """The applications behind `fleet`. `build` makes one of what is wanted; `delay_ms` is for others to hear that a
    removed one leaves.
    """

    def __init__(self, fleet: Fleet, build: Build, *, delay_ms: int) -> None:
        self._fleet = fleet
        self._build = build
        self._delay_s = delay_ms / 1000
        self._wanted: dict[str, ApplicationSpec] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._is_ending = False

    @property
    def served(self) -> Mapping[str, NodeApplication]:
        """The applications now, by their ids."""
        return self._fleet.applications  # type: ignore[return-value]  # `_live` alone adds to it

    def want(self, specs: Iterable[ApplicationSpec]) -> None:
        """Serve these, and no others. What changes is begun now, on the running loop, and goes on by itself."""
        before, self._wanted = self._wanted, {each.id: each for each in specs}
        for application_id in before.keys() | self._wanted.keys():
            wanted = self._wanted.get(application_id)
            if wanted == before.get(application_id):
                continue
            if application_id in self._changed:
                self._changed[application_id].set()
            if wanted is not None and application_id not in self._lives:
                self._begin(application_id)

    async def stop(self) -> None:
        """End all, in bounded time: the process ends."""
        self._is_ending = True
        lives = list(self._lives.values())
        self.want(())
        if lives:
            _, late = await asyncio.wait(lives, timeout=END_S)
            for life in late:
                life.cancel()

    def _begin(self, application_id: str) -> None:
        self._changed[application_id] = asyncio.Event()
        life = asyncio.get_running_loop().create_task(self._live(application_id), name=f"application {application_id}")
        self._lives[application_id] = life
        life.add_done_callback(lambda _: self._ended(application_id))

    def _ended(self, application_id: str) -> None:
        del self._lives[application_id], self._changed[application_id]
        self._fleet.remove(application_id)
        if application_id in self._wanted and not self._is_ending:  # it was added again at the last moment
            self._begin(application_id)

    async def _live(self, application_id: str) -> None:
        pause_s = FIRST_PAUSE_S
        changed = self._changed[application_id]
        while (spec := self._wanted.get(application_id)) is not None:
            changed.clear()
            application = self._build(spec)
            self._fleet.add(application_id, application)
            try:
                await application.serve(changed, Turns(self._is_served, self._is_leaving))
                pause_s = FIRST_PAUSE_S
                continue
            except UnderstudyError as error:
                log.error("application %s: %s", application_id, error, extra={"action": "application-failed"})
            except Exception:
                log.exception("application %s failed", application_id, extra={"action": "application-failed"})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _is_served(self, application: NodeApplication) -> None:
        self._fleet.add(application.settings.application, application)

    async def _is_leaving(self, application: NodeApplication) -> None:
        """Let others hear that an application leaves, and take no new requests for one that is wanted no more."""
        application_id, membership = application.settings.application, application.membership
        if membership is not None and membership.member is not None and not self._is_ending:
            await membership.member.leave()
            await asyncio.sleep(self._delay_s)
        if application_id not in self._wanted:
            self._fleet.remove(application_id)
