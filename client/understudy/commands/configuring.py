"""`understudy config`: the settings of a service that are in force here, and where each one comes from."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from understudy.services.effective_settings import InForce, in_force
from understudy.services.running import use_config_file
from understudy.services.settings import FLAGS_OF, given_settings, setting_options, unknown_variables
from understudy.terminal.console import Lines, Sheet, print_json, print_page
from understudy.terminal.exits import EXIT_CODES_HELP
from understudy_shared.base.texts import did_you_mean


def _service(name: str) -> click.Command:
    """Make `understudy config NAME`: it takes the flags of the service."""
    table = FLAGS_OF[name]

    def show(*, config: str | None, as_json: bool, changed: bool, **flags: Any) -> None:
        file, path = _file(config)
        given = given_settings(table, flags, *filter(None, [flags.get("checkpoint")]))
        rows = in_force(table, given, os.environ, file, path)
        _print(name, [row for row in rows if row.source != "default" or not changed], as_json=as_json)
        known = [row.name for row in rows]
        unknown = [
            f"the file has {key}, which is not a setting. {did_you_mean(key, known)}"
            for key in file
            if key not in known
        ]
        for line in [*unknown, *unknown_variables(os.environ)]:
            click.echo(f"warning: {line.strip()}", err=True)

    show.__doc__ = f"""Show the settings that understudy {name} would have here with these flags, and who set them.

    A flag wins over a variable, a variable over the file of --config, and that over the default. Passwords are masked.
    Nothing is started, and values are not checked: the service does that.

    \b
    Examples:
      understudy config {name}
      understudy config {name} --changed --config {name}.toml
    """
    wrapped: Callable[..., Any] = setting_options(table)(show)
    if name != "router":
        wrapped = click.argument("checkpoint", required=False)(wrapped)
    options = (
        click.option(
            "--config", type=click.Path(exists=True, dir_okay=False), envvar="UNDERSTUDY_CONFIG", show_envvar=True,
            help="TOML file with settings, named as the flags with underscores.",
        ),
        click.option("--changed", is_flag=True, help="Leave out what has its default."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    )  # fmt: skip
    for option in reversed(options):
        wrapped = option(wrapped)
    return click.command(name, epilog=EXIT_CODES_HELP)(wrapped)


def _file(config: str | None) -> tuple[dict[str, Any], str]:
    if config is None:
        return {}, ""
    use_config_file(Path(config))
    return tomllib.loads(Path(config).read_text(encoding="utf-8")), config


def _print(name: str, rows: Sequence[InForce], *, as_json: bool) -> None:
    if as_json:
        settings = [row._asdict() for row in rows]
        print_json(orjson.dumps({"service": name, "settings": settings}))
    elif rows:
        cells = [(row.name, _text(row.value), f"{row.source} {row.where}".strip()) for row in rows]
        print_page((Sheet(("setting", "value", "from"), cells),))
    else:
        print_page((Lines(["Everything has its default."]),))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


@click.group(epilog=EXIT_CODES_HELP)
def config() -> None:
    """Show which settings of a service are in force here, and whether a flag, a variable or a file set them.

    \b
    Examples:
      understudy config node --changed
      understudy config serve /data/checkpoints/flights --port 8081 --json
    """


for _name in FLAGS_OF:
    config.add_command(_service(_name))
