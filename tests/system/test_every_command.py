"""Every command of the command line, against a router of one application and against that of a fleet.

One table has all commands. At a fleet each works over all applications, or says that it wants --application; with that
option it does what it does for one. No message sends the user of the command line to a path of HTTP.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import orjson
import pytest
from click.testing import CliRunner, Result
from tests.support.bus.redis_server import redis_server
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.cluster.served_fleet import write_applications
from tests.support.services.command_line import environment
from tests.support.spark.counting_query import WORDS
from tests.support.spark.queries import wait_until
from tests.system.proof.processes import Service

from understudy.commands.group import cli
from understudy_shared.base.sockets import free_port

LIMIT_S = 60.0
NODES = ("node-1", "node-2")
APPLICATIONS = ("flights", "orders")
ONE = ["--application", "orders"]
HTTP_PATH = re.compile(r"(?<!docs)/(?:v1|admin)\b")

WORD = WORDS[0]
TABLE: Mapping[str, Sequence[str]] = {
    "serve": ["ready"],
    "node": ["ready"],
    "router": ["ready"],
    "demo": ["demo --nodes 0"],
    "get": [f"get op0 {WORD}"],
    "lookup": [f'lookup op0 ["{WORD}"]'],
    "scan": ["scan op0 --limit 1"],
    "count": ["count op0"],
    "windows": [f"windows op0 {WORD}"],
    "history": [f"history op0 {WORD}"],
    "watch": [f"watch op0 {WORD} --limit 1"],
    "changes": ["changes op0 --from 1 --to 1"],
    "snapshot create": ["snapshot create"],
    "snapshot list": ["snapshot list"],
    "snapshot release": ["snapshot release {lease}"],
    "export": ["export op0 --out -"],
    "sql": ["sql SELECT"],
    "explain": [f"explain op0 {WORD}"],
    "stores": ["stores", "stores op0"],
    "applications list": ["applications list"],
    "applications show": ["applications show orders"],
    "applications add": ["applications add new /nowhere --file {file}"],
    "applications remove": ["applications remove orders --file {file}"],
    "types": ["types op0"],
    "lag": ["lag", "lag --sort -lag"],
    "health": ["health"],
    "drain": ["drain node-1 --within-s 60", "drain node-1 --undo"],
    "safe-to-stop": ["safe-to-stop node-2 --within-s 60"],
    "doctor": ["doctor {url}", "doctor {checkpoint}"],
    "config serve": ["config serve"],
    "config node": ["config node"],
    "config router": ["config router"],
    "keys list": ["keys list --credentials-file {keys}"],
    "keys new": ["keys new reader --role reader --credentials-file {keys}"],
    "keys revoke": ["keys revoke none --credentials-file {keys}"],
    "bench": ["bench op0 --keys {words} --seconds 0.1 --connections 1"],
    "completion": ["completion bash"],
}
"""What is run of each command; `ready`: the service of this name, which the module started, is ready."""

NOT_ZERO = {"demo --nodes 0": 2, f"windows op0 {WORD}": 2, "keys revoke none --credentials-file {keys}": 2}
"""Exit codes that are not 0, as there is nothing to do."""

OF_A_FLEET = {"applications list", "applications show orders"}
"""Commands that say at one application that there are not several."""


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from leaves(found, f"{name} {each}".strip())
    else:
        yield name, command


COMMANDS = dict(leaves(cli))


class World:
    """The services of one kind."""

    def __init__(self, kind: str, folder: Path, redis_url: str, stack: ExitStack) -> None:
        self.kind, self.folder = kind, folder
        folder.mkdir()
        names = APPLICATIONS if kind == "fleet" else APPLICATIONS[1:]
        self.checkpoints = {name: HandmadeCheckpoint(folder / name).create().add(1, 2) for name in names}
        self.file = write_applications(folder / "fleet.toml", **{n: c.path for n, c in self.checkpoints.items()})
        places = [str(each.path) for each in self.checkpoints.values()]
        common = ["--redis", redis_url]
        asked, routed = ["--applications", str(self.file)], ["--applications", "*"]
        if kind == "single":
            asked, routed = [*places, "--application-id", "orders"], ["--application-id", "orders"]
        self.services = {name: self._service(name, ["node", *asked, *common, "--node-id", name]) for name in NODES}
        self.services["router"] = self._service("router", ["router", *routed, *common])
        self.services["serve"] = self._service("serve", ["serve", *places])
        self.services["node"] = self.services["node-1"]
        for service in list(self.services.values())[:-1]:
            stack.callback(service.kill)
            service.start()
        self.url = f"http://127.0.0.1:{self.services['router'].port}"

    def _service(self, name: str, arguments: Sequence[str]) -> Service:
        port, data = free_port(), self.folder / f"data-{name}"
        whole = [*arguments, "--port", str(port), "--data-dir", str(data)]
        return Service(name, whole, self.folder / f"{name}.log", port=port)

    def is_well(self) -> bool:
        if not all(service.is_ready for service in self.services.values()):
            return False
        return all(self.run(f"safe-to-stop {name}").exit_code == 0 for name in NODES)

    def run(self, line: str, more: Sequence[str] = ()) -> Result:
        """Run one line of the table. No command ends with an exception."""
        arguments = ["SELECT count(*) AS n FROM op0" if word == "SELECT" else word for word in line.split()]
        arguments = [self._filled(word) if "{" in word and '"' not in word else word for word in arguments]
        variables = {**environment(), "UNDERSTUDY_URL": self.url}
        result = CliRunner().invoke(cli, [*arguments, *more], env=variables)
        shown = "".join(traceback.format_exception(*result.exc_info)) if result.exc_info else ""
        assert result.exception is None or isinstance(result.exception, SystemExit), shown
        assert not HTTP_PATH.search(result.stderr), result.stderr
        return result

    def _filled(self, word: str) -> str:
        """The word with what this world has in the places of names."""
        if word == "{lease}":
            return self.run("snapshot create", ONE if self.kind == "fleet" else ()).stdout.strip()
        words, keys = self.folder / "words", self.folder / "keys.toml"
        words.write_bytes(orjson.dumps([WORD]) + b"\n")
        own = self.folder / "own.toml"
        own.write_text(self.file.read_text())
        names = {"checkpoint": self.checkpoints["orders"].path, "file": own, "url": self.url}
        return word.format(**names, keys=keys, words=words)


@contextmanager
def world_of(kind: str, folder: Path) -> Iterator[World]:
    """The services of one kind, which are well and have a key."""
    with ExitStack() as stack:
        world = World(kind, folder / kind, stack.enter_context(redis_server()).url, stack)
        wait_until(world.is_well, what=f"a {kind} with two replicas of each task", limit_s=LIMIT_S)
        assert world.run("keys new first --role reader --credentials-file {keys}").exit_code == 0
        yield world


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_of("single", tmp_path_factory.mktemp("commands")) as world:
        yield world


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_of("fleet", tmp_path_factory.mktemp("commands")) as world:
        yield world


def test_the_table_has_every_command() -> None:
    assert TABLE.keys() == COMMANDS.keys()


@pytest.mark.full
@pytest.mark.parametrize("command", TABLE)
def test_a_command_works_at_one_application(single: World, command: str) -> None:
    world = single
    for line in TABLE[command]:
        if line == "ready":
            assert world.services[command].is_ready
        else:
            result = world.run(line)
            if line in OF_A_FLEET:
                assert "this server has one application" in result.stderr
            else:
                assert result.exit_code == NOT_ZERO.get(line, 0), (line, result.output)
            if any("--application" in option.opts for option in COMMANDS[command].params):
                world.run(line, ONE)


@pytest.mark.parametrize("command", TABLE)
def test_a_command_works_at_a_fleet_or_asks_for_an_application_and_then_works(fleet: World, command: str) -> None:
    world = fleet
    asks_one = any("--application" in option.opts for option in COMMANDS[command].params)
    for line in TABLE[command]:
        if line == "ready":
            assert world.services[command].is_ready
            continue
        of_all, expected = world.run(line), NOT_ZERO.get(line, 0)
        if asks_one:
            assert of_all.exit_code == expected or "--application" in of_all.stderr, (line, of_all.output)
            of_all = world.run(line, ONE)
        assert of_all.exit_code == expected, (line, of_all.output)
