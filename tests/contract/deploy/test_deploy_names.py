"""What the files of a deployment call by name exists in the code: variables, commands and flags, paths, metrics.

Every file is read as text, templates of the chart too, so that what is off by default is held to the code as well.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, cast

import click
import pytest
from tests.support.repository import ROOT
from tests.support.services.deploy_files import COMPOSE, DOCKERFILE, SETTINGS, known_variables
from tools.chart import CHART

from understudy.commands.group import cli
from understudy_shared.server.probes import probe_routes

FILES = [
    DOCKERFILE,
    COMPOSE,
    *(path for path in sorted(CHART.rglob("*")) if path.is_file() and not path.is_symlink()),
    *sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml")),
    *sorted((ROOT / "deploy" / "compose").iterdir()),
    *sorted((ROOT / "deploy").glob("*.md")),
    *sorted((ROOT / "deploy").glob("*.sh")),
    *sorted((ROOT / "deploy" / "prometheus").glob("*.yml")),
]
VARIABLE = re.compile(r"\bUNDERSTUDY_[A-Z_]*[A-Z]\b")
COMMAND = re.compile(r"\bunderstudy ([a-z][a-z-]+)((?:\s+(?:--?[\w-]+|\"[^\"]*\"|\{\{[^}]*\}\}|[\w./:$-]+))*)")
PATH = re.compile(r"(?:(?<!\w)(?:metrics_)?path: (?=/)|127\.0\.0\.1:\d+(?=/\w+z\b)|probe\" \")(/[\w/-]+)")
METRIC = re.compile(r"\b(?:understudy|process)_[a-z0-9]+(?:_[a-z0-9]+)+\b")
METRICS = set(re.findall(r"`((?:understudy|process)_\w+)`", (ROOT / "docs" / "reference" / "metrics.md").read_text()))
"""As documented, which another test holds to the code."""

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())


def text_of(path: Path) -> str:
    """A file, with a command that goes on in the next line in one."""
    return re.sub(r"\\\n\s*", "", path.read_text())


@each_file
def test_every_variable_that_a_file_names_is_one_that_something_reads(path: Path) -> None:
    known = {name for service in SETTINGS for name in known_variables(service)} | {
        "UNDERSTUDY_API_KEY_FILE",
        "UNDERSTUDY_CA_FILE",
        "UNDERSTUDY_URL",
    }
    assert set(VARIABLE.findall(text_of(path))) - known == set()


@each_file
def test_every_command_that_a_file_runs_exists_with_its_flags(path: Path) -> None:
    for name, rest in COMMAND.findall(text_of(path)):
        if name not in cli.list_commands(click.Context(cli)):
            assert not rest.strip().startswith("--"), (name, rest)  # a word of a sentence
            continue
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), rest.split()[0])
        assert command is not None
        options = {option for each in command.params for option in each.opts}
        given = {word.partition("=")[0] for word in shlex.split(rest) if word.startswith("--")}
        assert given - options == set(), (name, given - options)


@each_file
def test_every_path_that_is_probed_or_scraped_is_a_route_of_nodes_and_routers(path: Path) -> None:
    nothing = cast("Any", None)
    there = {getattr(route, "path", None) for route in probe_routes(nothing).routes}
    assert set(PATH.findall(text_of(path))) - there == set()


@each_file
def test_every_metric_that_a_file_names_exists(path: Path) -> None:
    named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(text_of(path))}
    assert named - METRICS == set()
