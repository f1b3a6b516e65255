"""The files of a deployment as data: the Dockerfile's instructions by stage, and the stack of the compose file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import click
from pydantic_settings import BaseSettings
from ruamel.yaml import YAML
from tests.support.repository import ROOT

from understudy.commands.group import cli
from understudy.demo.settings import DemoSettings
from understudy_node.settings import ClusterNodeSettings
from understudy_router.settings import RouterSettings
from understudy_shared.settings import AnnouncedFields, FleetFields

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMPOSE = ROOT / "docker-compose.yml"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a Dockerfile: the lines from one FROM to the next."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)
    """(INSTRUCTION, arguments), continued lines joined."""

    def all(self, instruction: str) -> list[str]:
        return [arguments for name, arguments in self.instructions if name == instruction]

    def last(self, instruction: str) -> str | None:
        return next(reversed(self.all(instruction)), None)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """`arguments` are those before the first stage, with their defaults (None without one)."""

    arguments: dict[str, str | None]
    stages: list[Stage]

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    def line_of(self, name: str) -> list[Stage]:
        """A stage and those it is built from, itself first."""
        stage = self.stage(name)
        is_ours = any(other.name == stage.base for other in self.stages)
        return [stage, *(self.line_of(stage.base) if is_ours else [])]


def read_dockerfile(text: str) -> Dockerfile:
    """The instructions of a Dockerfile without heredocs."""
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    read = Dockerfile({}, [])
    for line in filter(None, map(str.strip, joined.splitlines())):
        instruction, _, rest = line.partition(" ")
        arguments = " ".join(rest.split())
        match instruction.upper():
            case "FROM":
                base, _, name = arguments.partition(" AS ")
                read.stages.append(Stage(base, name))
            case "ARG" if not read.stages:
                name, has_default, default = arguments.partition("=")
                read.arguments[name] = default if has_default else None
            case upper:
                read.stages[-1].instructions.append((upper, arguments))
    return read


def variables(stages: list[Stage]) -> dict[str, str]:
    """What ENV sets in an image that these stages make."""
    pairs = [pair for stage in stages for text in stage.all("ENV") for pair in text.split()]
    return dict(pair.split("=", 1) for pair in pairs)


def read_compose(text: str) -> dict[str, Any]:
    """The compose file; anchors and `<<` are resolved, and `${NAME:-default}` is its default."""
    loaded: dict[str, Any] = YAML(typ="safe").load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    return loaded


DOCKER = read_dockerfile(DOCKERFILE.read_text())
STACK = read_compose(COMPOSE.read_text())
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
IMAGES: dict[str, str] = {name: service["build"]["args"]["SERVICE"] for name, service in OURS.items()}
"""Service of the stack -> SERVICE of the Dockerfile."""

SETTINGS: dict[str, type[BaseSettings]] = {
    "node": ClusterNodeSettings,
    "router": RouterSettings,
    "pipeline": DemoSettings,
}
HTTP = {name: image for name, image in IMAGES.items() if image in ("node", "router")}


def environment_of(name: str) -> dict[str, str]:
    """Our variables in the environment of a service of the stack: from its image, then from the compose file."""
    environment = variables(DOCKER.line_of(IMAGES[name])[::-1]) | SERVICES[name]["environment"]
    return {variable: value for variable, value in environment.items() if variable.startswith("UNDERSTUDY_")}


def known_variables(image: str) -> set[str]:
    """What a service's process reads: its settings, and what its command takes from the environment."""
    command = cli.get_command(click.Context(cli), image) if image in HTTP.values() else None
    options = [] if command is None else command.params
    envvars = {option.envvar for option in options if isinstance(option.envvar, str)}
    of_fleets = {*FleetFields.model_fields, *AnnouncedFields.model_fields}
    more = {"pipeline": {"gossip_key_file"}, "node": of_fleets}.get(image, set())
    return {f"UNDERSTUDY_{name.upper()}" for name in {*SETTINGS[image].model_fields, *more}} | envvars
