"""The generated pages of the reference say what the code says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import click
import pytest
from tools.reference.openapi_calls import calls
from tools.reference.pages import FOLDER, PAGES

from understudy.commands.group import cli


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    written = (FOLDER / name).read_text()
    assert written == PAGES[name](), "python -m tools.reference writes it"


def sections(*names: str) -> dict[str, str]:
    """The text of each section of some pages, by the anchor of its heading."""
    texts = "".join((FOLDER / name).read_text() for name in names)
    parts = re.split(r"(?m)^#{2,4} (.+)$", texts)[1:]
    return {title.lower().replace(" ", "-"): text for title, text in zip(parts[::2], parts[1::2], strict=True)}


def reachable(anchor: str, found: Mapping[str, str]) -> str:
    """A section, and those that it leads to, one after the other."""
    seen: dict[str, None] = {anchor: None}
    for each in (queue := [anchor]):
        new = [other for other in re.findall(r"\(#([\w-]+)\)", found[each]) if other not in seen]
        seen.update(dict.fromkeys(new))
        queue.extend(new)
    return "".join(found[each] for each in seen)


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield "-".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_every_option_is_found_from_its_command() -> None:
    found, settings = sections("command-line.md"), (FOLDER / "settings.md").read_text()
    options = [
        (anchor, option)
        for anchor, command in commands(cli)
        for parameter in command.params
        for option in parameter.opts
        if isinstance(parameter, click.Option) and option.startswith("--")
    ]
    assert len(options) > 200
    of_settings = {f"--{name.replace('_', '-')}" for name in re.findall(r"(?m)^- `(\w+)`", settings)}
    assert [
        (anchor, option)
        for anchor, option in options
        if f"`{option}" not in reachable(anchor, found)
        and not ("](settings.md#" in found[anchor] and option in of_settings)
    ] == []
    assert [
        option for _, option in options if option not in of_settings and f"- `{option}" not in "".join(found.values())
    ] == []


def test_every_parameter_and_member_is_found_from_its_call() -> None:
    found = sections("http.md", "admin.md")
    in_the_path = {"store", "key", "application", "node_id"}
    for call in calls():
        text = reachable(call.name, found)
        schema = call.operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        names = [call.resolved(each)["name"] for each in call.operation.get("parameters", [])]
        names += call.resolved(schema).get("properties", {})
        assert [name for name in names if f"`{name}`" not in text and name not in in_the_path] == [], call.name
