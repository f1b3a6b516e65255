"""The world of the proof (Spark, Redis, three nodes, two routers), which readers ask and Prometheus watches."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.measurements import measured
from tests.support.repository import ROOT
from tests.support.services.prometheus import Prometheus, program, prometheus
from tests.support.services.quick_rules import quicker
from tests.support.spark.queries import wait_until
from tests.system.alerts.readers import readers
from tests.system.proof.processes import Service
from tests.system.proof.proxy import Toxics
from tests.system.proof.world import APPLICATION, World, WorldOptions, world

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
QUICKER = 30
"""Five minutes take 10 s: still several scrapes."""

PROCESSES, PROCESSES_QUICKER = "name: understudy-processes", 10
"""For the alerts about processes: one takes seconds to start, on a busy machine ten, and three starts must count."""

EVERY_MS = 1000
LOOK_EVERY_S = 0.2
LIMIT_S = 300.0
"""What is waited for takes seconds, and a quarantine or a lag of a minute its time; a loaded machine gets its own."""


@dataclass(frozen=True, slots=True)
class WatchedWorld:
    """What runs, and the server that scrapes it."""

    world: World
    prometheus: Prometheus

    def wait_for(self, alerts: Collection[str], *, what: str, fire: bool) -> None:
        """Return when all of these alerts fire, or none of them."""
        began_s = time.monotonic()

        def are_so() -> bool:
            firing = self.prometheus.firing() & set(alerts)
            return firing == set(alerts) if fire else not firing

        try:
            wait_until(are_so, what=what, limit_s=LIMIT_S, every_s=LOOK_EVERY_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: wanted {sorted(alerts)}, firing {self.prometheus.firing()}") from None
        took_s, verb = time.monotonic() - began_s, "fired" if fire else "cleared"
        measured(f"alerts: {', '.join(sorted(alerts))} {verb} after {took_s:.0f} s ({what})")

    def wait_until_well(self) -> None:
        """Return when nothing is broken any more."""
        why = self.world.settle(LIMIT_S)
        assert not why, why

    def scraped(self, metric: str, service: Service) -> float | None:
        """A metric without further labels, as the last scrape of a service found it."""
        return self.prometheus.value(f'{metric}{{instance="127.0.0.1:{service.port}"}}')

    def wait_for_scrape(self, metric: str, service: Service, wanted: Callable[[float], bool]) -> None:
        """Return when a scrape of the service found what is wanted."""

        def is_found() -> bool:
            found = self.scraped(metric, service)
            return found is not None and wanted(found)

        wait_until(is_found, what=f"{metric} of {service.name}", limit_s=LIMIT_S, every_s=LOOK_EVERY_S)

    @contextmanager
    def toxic(self, toxics: Toxics, *proxies: str) -> Iterator[None]:
        """These proxies misbehave until the end of the block."""
        try:
            for proxy in proxies:
                self.world.proxies.set(proxy, toxics)
            yield
        finally:
            for proxy in proxies:
                self.world.proxies.set(proxy, Toxics())


def quick_rules(rules: str) -> str:
    """The rules in a fraction of their time, which is larger for processes."""
    groups = re.split(r"(?m)^(?=  - name: )", rules)
    return "".join(quicker(group, PROCESSES_QUICKER if PROCESSES in group else QUICKER) for group in groups)


@contextmanager
def dead(service: Service) -> Iterator[None]:
    """Killed, and started again at the end of the block. What is on its disk stays."""
    service.kill()
    try:
        yield
    finally:
        service.start()


@contextmanager
def living_otherwise(service: Service, *more: str, launcher: tuple[str, ...] = ("understudy",)) -> Iterator[None]:
    """Until the end of the block it runs with more arguments, or by another program."""
    before = service.launcher, service.arguments
    service.kill()
    service.launcher, service.arguments = launcher, (*service.arguments, *more)
    service.start()
    try:
        yield
    finally:
        service.kill()
        service.launcher, service.arguments = before
        service.start()


@contextmanager
def watched_world(folder: Path) -> Iterator[WatchedWorld]:
    """All of it until the end of the block. Skips the test where there is no Prometheus."""
    program("prometheus")
    with ExitStack() as stack:
        made = stack.enter_context(world(folder, WorldOptions(), lambda _: None))
        ports = [service.port for service in (*made.routers.values(), *made.nodes.values())]
        rules = quick_rules(RULES.read_text())
        targets = {APPLICATION: ports}
        server = stack.enter_context(prometheus(folder / "prometheus", targets, rules, every_ms=EVERY_MS))
        routers = [router.port for router in made.routers.values()]
        stack.enter_context(readers(routers, lambda: made.watch.version))
        up = f'sum(up{{job="{APPLICATION}"}})'
        wait_until(lambda: server.value(up) == len(ports), what="scrapes", limit_s=LIMIT_S, every_s=LOOK_EVERY_S)
        yield WatchedWorld(made, server)
