"""Every interface that docs/compatibility.md makes promises of, and its form today."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from types import ModuleType

import click
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.forms.api import api_form
from tests.support.forms.form import Form, form, schema_lines
from tests.support.repository import ROOT
from tests.support.services.expositions import cluster_node, labels_in, metrics_of, router_exposition

import understudy
from understudy import testing, typed
from understudy.commands.group import cli
from understudy.services.settings import FLAGS_OF
from understudy.terminal.exits import ExitCode
from understudy_node.engine import arena_files
from understudy_shared.auth.credentials import CredentialsFile
from understudy_shared.bus import messages
from understudy_shared.bus.assignments import AssignmentChange
from understudy_shared.bus.messages import Announcement
from understudy_shared.cluster import without_bus


def _document() -> Mapping[str, object]:
    text = (resources.files("understudy_shared") / "http" / "openapi" / "openapi.json").read_text()
    found: Mapping[str, object] = json.loads(text)
    return found


def hop() -> Form:
    """Return the calls between routers and nodes: their paths; golden bytes hold what they carry."""
    sources = [path.read_text() for folder in ("shared", "node") for path in (ROOT / folder).rglob("*.py")]
    return Form(frozenset(path for text in sources for path in re.findall(r'"(/internal/v1/[^"{]+)', text)))


def gossip() -> Form:
    """Return the documents that processes send each other: both sides of a rolling upgrade read and write them."""
    kinds = (messages.Heartbeat, messages.Farewell, messages.Catalogue, messages.Assignment)
    return _models(*kinds, AssignmentChange, messages.CommitHint, Announcement)


def redis_keys() -> Form:
    """Return the keys and channels that each role uses, as the ACL users have them."""
    lines = (ROOT / "deploy" / "redis" / "users.acl").read_text().splitlines()
    users = [line.split() for line in lines if line.startswith("user APPLICATION-")]
    return Form(frozenset(f"{user[1]}: {word}" for user in users for word in user if word[0] in "~&%"))


def credentials() -> Form:
    """Return the file of credentials. Services only read what operators wrote: nothing in it is always there."""
    return Form(*_models(CredentialsFile, answered=False))


def local_files() -> Form:
    """Return the marks of the files in --data-dir: another mark means that a node restores from the checkpoint."""
    marks = {
        "arena": arena_files._INDEX_MAGIC,
        "arena sums": arena_files._SUMS_MAGIC,
        "remembered documents": without_bus.MAGIC,
    }
    return Form(frozenset(f"{name}: {mark.decode()}" for name, mark in marks.items()))


def settings() -> Form:
    """Return the settings of each service, which are flags, variables and lines of a file at once."""
    flags = [(service, flag) for service, table in FLAGS_OF.items() for flag in table]
    return Form(
        frozenset(f"{service} {flag.name}: {flag.kind}" for service, flag in flags)
        | frozenset(f"{service}: " for service in FLAGS_OF),
        frozenset(f"{service}: {flag.name}" for service, flag in flags if flag.is_required),
    )


def commands() -> Form:
    """Return commands, arguments, options and exit codes, without those that are settings."""
    lines = [(False, f"exit {code.value}: {code.name}") for code in ExitCode]
    return form([*lines, *_command(cli, "understudy")])


def _command(command: click.Command, name: str) -> Iterator[tuple[bool, str]]:
    yield False, f"{name}: "
    service = name.rpartition(" ")[2]
    own = {flag.option for flag in FLAGS_OF.get(service, ())}
    for each in command.params:
        words = each.opts if isinstance(each, click.Option) else [(each.name or "").upper()]
        for word in [*words, *each.secondary_opts]:
            if word not in own:
                yield False, f"{name}: {word} {each.type.name}"
        if isinstance(each.type, click.Choice):
            yield from ((False, f"{name}: {words[0]} {choice}") for choice in map(str, each.type.choices))
        if each.required:
            yield True, f"{name}: {words[0]}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            assert found is not None
            yield from _command(found, f"{name} {sub}")


def json_output() -> Form:
    """Return the members of what `--json` prints that no server answered: the rest is the HTTP interface's."""
    with tempfile.TemporaryDirectory() as name:
        keys = Path(name) / "keys.toml"
        checkpoint = HandmadeCheckpoint(Path(name) / "words").create().add(1)
        calls = {
            "config router": ["config", "router", "--json"],
            "doctor CHECKPOINT": ["doctor", str(checkpoint.path), "--json"],
            "keys new": ["keys", "new", "a", "--role", "reader", "--credentials-file", str(keys), "--json"],
            "keys list": ["keys", "list", "--credentials-file", str(keys), "--json"],
        }
        printed = {called: _printed(arguments) for called, arguments in calls.items()}
    return Form(frozenset(line for called, found in printed.items() for line in _members(found, called)))


def _printed(arguments: list[str]) -> object:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[0])


def _members(value: object, place: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield f"{place}.{name}: there"
            yield from _members(each, f"{place}.{name}")
    elif isinstance(value, list):
        for each in value:
            yield from _members(each, f"{place}[]")


def python_client() -> Form:
    """Return the public names of the Python client, and the parameters of what can be called."""
    return form(line for module in (understudy, typed, testing) for line in _module(module))


def _module(module: ModuleType) -> Iterator[tuple[bool, str]]:
    for name in module.__all__:
        found, place = getattr(module, name), f"{module.__name__}.{name}"
        yield False, f"{place}: there"
        calls = {place: found} if callable(found) else {}
        if inspect.isclass(found):
            members = {each: value for each, value in inspect.getmembers(found) if not each.startswith("_")}
            yield from ((False, f"{place}.{each}: there") for each in members)
            calls |= {f"{place}.{each}": value for each, value in members.items() if inspect.isfunction(value)}
        for called, value in calls.items():
            yield from _parameters(value, called)


def _parameters(value: Callable[..., object], place: str) -> Iterator[tuple[bool, str]]:
    with suppress(ValueError, TypeError):  # of types without a signature
        for each in inspect.signature(value).parameters.values():
            if each.name != "self":
                yield False, f"{place}: {each.kind.description} {each.name}"
                if each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
                    yield True, f"{place}: {each.name}"


def metrics() -> Form:
    """Return the families of a node and a router, with their types and labels."""
    return Form(frozenset(asyncio.run(_metrics())))


async def _metrics() -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        checkpoint = HandmadeCheckpoint(Path(name) / "checkpoint").create().add(1)
        with cluster_node(checkpoint.path, Path(name) / "data") as (_, app):
            texts = {"node": await metrics_of(app), "router": await router_exposition()}
    families = [(place, each) for place, text in texts.items() for each in text_string_to_metric_families(text)]
    labels = [(place, *each) for place, text in texts.items() for each in labels_in(text).items()]
    return [f"{place} {each.name}: {each.type}" for place, each in families] + [
        f"{place} {name}: label {label}" for place, name, found in labels for label in found
    ]


def _models(*models: type[BaseModel], answered: bool = True) -> Form:
    found: dict[str, Mapping[str, object]] = {}
    for model in models:
        schema = model.model_json_schema()
        found |= schema.pop("$defs", {})
        found[model.__name__] = schema
    return form(
        line for name, each in found.items() for line in schema_lines(each, name, given=True, answered=answered)
    )


INTERFACES: Mapping[str, Callable[[], Form]] = {
    "http": lambda: api_form(_document(), is_admin=False),
    "admin": lambda: api_form(_document(), is_admin=True),
    "hop": hop,
    "gossip": gossip,
    "redis": redis_keys,
    "local-files": local_files,
    "credentials": credentials,
    "metrics": metrics,
    "settings": settings,
    "commands": commands,
    "json": json_output,
    "python": python_client,
}
"""The function of each interface that says its form today, by the name of its file."""
