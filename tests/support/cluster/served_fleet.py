"""A process of several applications on a real port, with a client of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.support.spark.queries import wait_until

from understudy_node.cluster.member import Clusters
from understudy_node.fleet.application import NodeProcess
from understudy_node.fleet.process import FleetProcess
from understudy_node.settings import ClusterNodeSettings, NodeSettings
from understudy_shared.base.words import HostInfo
from understudy_shared.server.connection_guard import ConnectionGuard
from understudy_shared.server.service import Departure, Service, bound_socket

LIMIT_S = 20.0


class ServedFleet:
    """The process, and a client of its port."""

    def __init__(self, process: FleetProcess, port: int) -> None:
        self.process = process
        self.port = port
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT_S)

    def get(self, path: str) -> httpx.Response:
        return self._client.get(path)

    def post(self, path: str, body: object) -> httpx.Response:
        return self._client.post(path, json=body)

    def states(self) -> dict[str, str]:
        """The state of each application, by id."""
        listed = self.get("/v1/applications").json()["applications"]
        return {each["application"]: each["state"] for each in listed}

    def application(self, application_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/applications/{application_id}").json()
        return found

    def wait_for(self, **states: str) -> None:
        """Wait until the applications are these, in these states."""
        wait_until(lambda: self.states() == states, what=f"{states}, not {self.states()}")

    def close(self) -> None:
        self._client.close()


@contextmanager
def served_fleet(settings: NodeSettings, **shared: Any) -> Iterator[ServedFleet]:
    """Run a fleet until the block ends. `shared` replaces parts that its applications share."""
    listener = bound_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    guard, departure = ConnectionGuard(), None
    settings = settings.model_copy(update={"port": port})
    clusters = Clusters(settings) if isinstance(settings, ClusterNodeSettings) else None
    parts = NodeProcess(settings, settings.own_access(), HostInfo("127.0.0.1", port), guard, clusters, **shared)
    process = FleetProcess(settings, parts)
    if isinstance(settings, ClusterNodeSettings):
        departure = Departure(process.leave, settings.shutdown_delay_ms)
    service = Service(process.app, departure, guard)
    listener.listen()
    thread = threading.Thread(target=service.run, kwargs={"sockets": [listener]}, name="fleet")
    thread.start()
    served = ServedFleet(process, port)
    try:
        wait_until(lambda: service.started or not thread.is_alive(), what="the fleet's start")
        yield served
    finally:
        served.close()
        service.should_exit = True
        thread.join(2 * LIMIT_S)
    assert not thread.is_alive()


def write_applications(path: Path, **checkpoints: Path | str) -> Path:
    """Write a file of applications: the checkpoint of each, by id."""
    tables = [f'[[applications]]\nid = "{each}"\ncheckpoint = "{place}"\n' for each, place in checkpoints.items()]
    draft = path.with_suffix(".draft")
    draft.write_text("\n".join(tables))
    return draft.replace(path)
