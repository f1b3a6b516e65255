"""A second history of the checkpoint: a copy on which Spark goes on with other rows, and a node that follows it.

The node has the application, the secret and the Redis of the others, as one has that was started beside a copy by
mistake. It must get no task, whoever of the others dies.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.spark.queries import committed_batches, wait_until
from tests.system.proof.processes import Service
from tests.system.proof.world import APPLICATION, World

AHEAD = 3
"""Versions that the copy has before the query goes on: readers prefer who is not behind."""

JUDGED_LIMIT_S = 60.0


class ForkedCheckpoint:
    """One copy with its query and its node. It dies with `victim`'s return."""

    def __init__(self, world: World, victim: Service) -> None:
        self.victim = victim
        self._world = world
        number = len(list(world.folder.glob("fork-*"))) + 1
        self._folder = world.folder / f"fork-{number}"
        self._checkpoint = self._folder / APPLICATION
        self._spark = world.spark.on_a_copy(self._checkpoint, self._folder / "spark")
        self._name = f"foreign-{number}"
        self._node: Service | None = None

    def inject(self) -> None:
        """Copy while the query stands still, let the copy run ahead, start its node, and kill the victim."""
        self._world.spark.freeze()
        try:
            copy_at_rest(Path(self._world.storage.location), self._checkpoint)
            enough = committed_batches(self._checkpoint)[-1] + AHEAD
            self._spark.start()
            self._spark.wait_until_it_runs()
            wait_until(
                lambda: committed_batches(self._checkpoint)[-1] >= enough, what="commits of the copy", limit_s=120
            )
        finally:
            self._world.spark.thaw()
        self._node = node = self._world.another_node(self._name, str(self._checkpoint))
        node.start()
        wait_until(
            lambda: self._is_judged(node),
            what="the cluster's word on the foreign node",
            limit_s=JUDGED_LIMIT_S,
            every_s=0.2,
        )
        self.victim.kill()

    def heal(self) -> None:
        """End what belongs to the copy, and start the victim again."""
        if self._node is not None:
            self._node.kill()
        self._spark.kill()
        if not self.victim.is_running:
            self.victim.start()

    def _is_judged(self, node: Service) -> bool:
        """Whether the foreign node was refused, or has become active for something."""
        if self._name in self._world.active_nodes():
            return True
        try:
            return "follows a fork" in str(node.get("/readyz").body)
        except OSError:
            return False


def copy_at_rest(checkpoint: Path, copy: Path) -> None:
    """Copy it as `cp -p` does, so that the commits so far keep their times. Spark's drafts are hidden files."""
    shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns(".*"))
