"""Each fault of the menu (schedule.py) as what it does to the world, and what heals it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.bus.absurd_messages import AbsurdMessages
from tests.support.bus.refused_writes import WAYS
from tests.support.checkpoint.small_disk import empty, fill
from tests.support.object_store.hdfs_server import Door, Role
from tests.support.spark.queries import wait_until
from tests.system.proof.cancelling_reader import IN_A_ROUND
from tests.system.proof.forked_checkpoint import ForkedCheckpoint
from tests.system.proof.processes import Process, Service, Talking
from tests.system.proof.proxy import CUT, Toxics
from tests.system.proof.storage import StoreStorage, store_proxy
from tests.system.proof.unsigned_lease import UnsignedLease
from tests.system.proof.views import damaged, missing
from tests.system.proof.world import (
    APPLICATION,
    NODE_WITH_FAKE_CLOCK,
    NODE_WITH_SMALL_DISK,
    ROUTERS,
    World,
    redis_proxy,
)

from understudy_node.engine.arena_files import HEADER_BYTES

HOUR_S = 3600
FORGED_MEMBERS, FORGED_LATER, FORGE_EVERY_S = 6000, 200, 1.0
"""Above the nodes that anybody listens to; then some more at each turn."""
HOSTILE_LIMIT_S = "120"
"""They end by themselves then, even if this process is killed."""

SLOW_STORE = Toxics(bytes_per_s=100_000)
RESTORING_LIMIT_S = 60.0
COPYING_S = 20.0

FIRST_FLIPPED, FLIPPED_EVERY = HEADER_BYTES, 97
"""A header is left whole: a copy without one is not opened at all."""

SLOW = Toxics(delay_ms=250)
"""Each way: an answer takes half a second longer."""


class SkippedFault(Exception):  # noqa: N818  # not an error: the machine does not allow it
    """The reason why this machine cannot inject a fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`target` is what is really hit. `heal` undoes `inject`; what needs time to come back is waited for elsewhere."""

    target: str
    inject: Callable[[], None]
    heal: Callable[[], None]


Maker = Callable[[World, str], Fault]


def make(world: World, name: str, target: str) -> Fault:
    """A fault of the menu, before it acts. Raises SkippedFault where it cannot be had."""
    return _MAKERS[name](world, target)


def active_node(world: World, preferred: str) -> str:
    """A node that is active for something: the preferred one, if it is."""
    actives = world.active_nodes()
    return preferred if preferred in actives else max(sorted(actives), key=actives.__getitem__)


def _kill_active(world: World, target: str) -> Fault:
    node = world.nodes[active_node(world, target)]
    return Fault(node.name, node.kill, node.start)


def _forked_checkpoint(world: World, target: str) -> Fault:
    fork = ForkedCheckpoint(world, world.nodes[active_node(world, target)])
    return Fault(fork.victim.name, fork.inject, fork.heal)


def _unsigned_lease(world: World, target: str) -> Fault:
    keyless = UnsignedLease(world, world.nodes[active_node(world, target)])
    return Fault(keyless.first.name, keyless.inject, keyless.heal)


def _stop_active(world: World, target: str) -> Fault:
    node = world.nodes[active_node(world, target)]
    return Fault(node.name, node.freeze, node.thaw)


def _kill_router(world: World, target: str) -> Fault:
    router = world.routers[target]
    return Fault(target, router.kill, router.start)


def _proxied(toxics: Toxics, name: Callable[[str], str] = str) -> Maker:
    """The proxy of a node misbehaves."""

    def make_it(world: World, target: str) -> Fault:
        proxy = name(target)
        return Fault(target, lambda: world.proxies.set(proxy, toxics), lambda: world.proxies.set(proxy, Toxics()))

    return make_it


def _redis_down(world: World, target: str) -> Fault:
    return Fault(target, world.redis.kill, world.redis.start)


def _redis_pause(world: World, target: str) -> Fault:
    return Fault(target, world.redis.pause, world.redis.resume)


def _redis_flush(world: World, target: str) -> Fault:
    return Fault(target, world.redis.flush, _nothing)


def _redis_refuses_writes(world: World, target: str) -> Fault:
    """Redis refuses writes, in another way each time."""
    way = next(world.refusals)
    refusing = WAYS[way]
    return Fault(f"{target}: {way}", lambda: refusing.refuse(world.redis), lambda: refusing.allow(world.redis))


def _absurd_messages(world: World, target: str) -> Fault:
    """All of it again and again; thousands of members at first, so that each node and router meets its bound."""
    over = threading.Event()
    forger = AbsurdMessages(world.redis.url, APPLICATION)

    def forge() -> None:
        members = FORGED_MEMBERS
        while not over.is_set():
            forger.all_at_once(members=members)
            members = FORGED_LATER
            over.wait(FORGE_EVERY_S)
        forger.close()

    thread = threading.Thread(target=forge, name="forger", daemon=True)

    def end() -> None:
        over.set()
        thread.join()

    return Fault(target, thread.start, end)


def _disk_full(world: World, _target: str) -> Fault:
    """Full, and the node killed and started again on it: one that only follows hardly writes."""
    node, disk = world.nodes[NODE_WITH_SMALL_DISK], world.small_disk
    if isinstance(disk, str):
        raise SkippedFault(disk)
    return Fault(node.name, lambda: _restart_on_full(node, disk), lambda: _make_room(node, disk))


def _restart_on_full(node: Service, disk: Path) -> None:
    fill(disk)
    node.kill()
    node.start()


def _make_room(node: Service, disk: Path) -> None:
    """What a supervisor does for a node that gave up belongs to it."""
    (disk / "ballast").unlink()
    if not node.is_running:
        node.start()


def _corrupt_changelog(world: World, target: str) -> Fault:
    """The one after next: the next may be there already."""
    view = world.storage.views[target]
    return Fault(target, lambda: view.spoil(damaged(world.watch.version + 2)), view.heal)


def _delete_changelog(world: World, target: str) -> Fault:
    view = world.storage.views[target]
    return Fault(target, lambda: view.spoil(missing(world.watch.version + 2)), view.heal)


def _checkpoint_gone(world: World, target: str) -> Fault:
    view = world.storage.views[target]
    return Fault(target, view.vanish, view.heal)


def _store(toxics: Toxics) -> Maker:
    """What the store does to every node. Spark and the watcher have a way of their own."""

    def make_it(world: World, target: str) -> Fault:
        def to_all(now: Toxics) -> None:
            for node in world.nodes:
                world.proxies.set(store_proxy(node), now)

        return Fault(target, lambda: to_all(toxics), lambda: to_all(Toxics()))

    return make_it


def _frozen(role: Role) -> Maker:
    """A process of HDFS that stops where it is, for Spark and the watcher, too."""

    def make_it(world: World, target: str) -> Fault:
        storage = world.storage
        assert isinstance(storage, StoreStorage)
        door = storage.server
        assert isinstance(door, Door)
        return Fault(target, lambda: door.server.freeze(role), lambda: door.server.thaw(role))

    return make_it


def _kill_restoring(world: World, target: str) -> Fault:
    """A node without local copies, which is killed while it downloads a file of its first one."""
    node, data = world.nodes[target], world.data[target]

    def inject() -> None:
        node.kill()
        world.proxies.set(store_proxy(target), SLOW_STORE)
        while not arriving(data):  # it may also be killed between two files
            empty(data)
            node.start()
            wait_until(lambda: arriving(data), what=f"{target} to restore", limit_s=RESTORING_LIMIT_S)
            node.kill()
        world.proxies.set(store_proxy(target), Toxics())

    return Fault(target, inject, node.start)


def arriving(data: Path) -> bool:
    """Whether a file that is not whole yet lies in a node's folder: it has another name until then."""
    return any(name.endswith(".arriving") for _, _, names in os.walk(data) for name in names)


def _damaged_local_copy(world: World, target: str) -> Fault:
    """A node that comes back to local copies in which bits were flipped."""
    node, data = world.nodes[target], world.data[target]

    def inject() -> None:
        _make_copies(node, data)  # old ones would not be used again
        for path in arenas(data):
            flip_bits(path)
        node.start()
        wait_until(lambda: node.is_ready, what=f"{node.name} to come back", limit_s=RESTORING_LIMIT_S)

    return Fault(target, inject, _nothing)


def _make_copies(node: Service, data: Path) -> None:
    """Have a node make its local copies anew, and kill it; again and again while Spark has written no snapshot."""
    until_s = time.monotonic() + RESTORING_LIMIT_S
    while True:
        node.kill()
        empty(data)
        node.start()
        tried_s = time.monotonic() + COPYING_S
        while time.monotonic() < tried_s:
            if node.is_ready and arenas(data):
                node.kill()
                return
            time.sleep(0.1)
        assert time.monotonic() < until_s, f"{node.name} makes no local copies"


def arenas(data: Path) -> list[Path]:
    """The files of a node's own format in its folder, of finished copies."""
    return [path for done in data.rglob("base.json") for path in done.parent.glob("arena.[ir]*")]


def flip_bits(path: Path) -> None:
    """Flip a bit in each hundredth byte."""
    content = bytearray(path.read_bytes())
    for at in range(FIRST_FLIPPED, len(content), FLIPPED_EVERY):
        content[at] ^= 0x04
    path.write_bytes(content)


def _clock_jump(world: World, _target: str) -> Fault:
    """An hour ahead, and an hour back at healing."""
    return Fault(NODE_WITH_FAKE_CLOCK, lambda: world.clock.jump(HOUR_S), lambda: world.clock.jump(0))


def _rolling_restart(world: World, target: str) -> Fault:
    return Fault(target, lambda: _restart_all(world), _nothing)


def _restart_all(world: World) -> None:
    """Every node and router in good order, one after the other, each when all is well again."""
    for service in (*world.nodes.values(), *world.routers.values()):
        code = service.terminate()
        assert code == 0, f"{service.name} ended with exit code {code}: {service.log_end}"
        service.start()
        world.settle()


def _kill_spark(world: World, target: str) -> Fault:
    return Fault(target, world.spark.kill, world.restart_spark)


def _added_variable(world: World, target: str) -> Fault:
    """The driver dies, and keeps another state variable when it is started again. There is but one to add."""
    if world.spark.has_added or not world.subject.added:
        raise SkippedFault("the query has none to add, or has added it")

    def inject() -> None:
        world.spark.kill()
        world.spark.add_variable()

    return Fault(target, inject, world.restart_spark_with_added)


def _other_spark(world: World, target: str) -> Fault:
    """The driver dies, and the query goes on with another release."""

    def inject() -> None:
        world.spark.kill()
        world.spark.change_release()

    return Fault(target, inject, world.restart_spark)


def _hostile_connections(world: World, target: str) -> Fault:
    """Against a router and a node, each at its own port."""
    ports = [str(service.port) for service in (world.routers[ROUTERS[0]], world.nodes[target])]
    clients = Process("hostile-clients", [HOSTILE_LIMIT_S, *ports], world.folder / "logs" / "hostile-clients.log")
    clients.launcher = ("tests.support.services.hostile_clients",)
    return Fault(target, clients.start, clients.kill)


def _cancelling_reader(world: World, target: str) -> Fault:
    """At all routers and a node, each at its own port. What it cancelled is in its log."""
    ports = [service.port for service in (*world.routers.values(), world.nodes[target])]
    arguments = [json.dumps(ports), world.application, str(ports[0])]
    reader: list[Talking] = []

    def inject() -> None:
        log = world.folder / "logs" / "cancelling-reader.log"
        log.parent.mkdir(exist_ok=True)  # a world of a fleet has none yet
        reader.append(Talking("the cancelling reader", "tests.system.proof.cancelling_reader", arguments, log))

    def heal() -> None:
        cancelled = json.loads(reader[0].order("counts"))
        reader[0].end()
        missing = IN_A_ROUND.keys() - cancelled.keys()
        assert not missing, f"nothing was cancelled of: {', '.join(sorted(missing))}; it cancelled {cancelled}"

    return Fault(target, inject, heal)


def _nothing() -> None:
    """It heals by itself."""


_MAKERS: dict[str, Maker] = {
    "kill-active": _kill_active,
    "stop-active": _stop_active,
    "kill-router": _kill_router,
    "cut-node": _proxied(CUT),
    "cut-replies": _proxied(Toxics(cut_to_client=True)),
    "cut-node-from-redis": _proxied(CUT, redis_proxy),
    "slow-node": _proxied(SLOW),
    "slow-link": _proxied(Toxics(bytes_per_s=20_000)),
    "node-answers-500": _proxied(Toxics(answer=500)),
    "refuse-node": _proxied(Toxics(refuse=True)),
    "redis-down": _redis_down,
    "redis-pause": _redis_pause,
    "redis-flush": _redis_flush,
    "redis-refuses-writes": _redis_refuses_writes,
    "absurd-messages": _absurd_messages,
    "disk-full": _disk_full,
    "corrupt-changelog": _corrupt_changelog,
    "delete-changelog": _delete_changelog,
    "damaged-local-copy": _damaged_local_copy,
    "clock-jump": _clock_jump,
    "rolling-restart": _rolling_restart,
    "checkpoint-gone": _checkpoint_gone,
    "store-throttles": _store(Toxics(answer=503)),
    "store-hangs": _store(CUT),
    "namenode-stops": _frozen("namenode"),
    "datanode-stops": _frozen("datanode"),
    "cut-node-from-store": _proxied(CUT, store_proxy),
    "kill-restoring": _kill_restoring,
    "kill-spark": _kill_spark,
    "added-variable": _added_variable,
    "other-spark": _other_spark,
    "hostile-connections": _hostile_connections,
    "cancelling-reader": _cancelling_reader,
    "forked-checkpoint": _forked_checkpoint,
    "unsigned-lease": _unsigned_lease,
}
