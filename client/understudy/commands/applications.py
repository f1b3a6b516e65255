"""`understudy applications`: the applications of a fleet, and the file that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import orjson
from click.core import ParameterSource

from understudy.calls.http_client import path_segment
from understudy.calls.options import Command, ServerOptions, server_options
from understudy.terminal.console import FieldList, Page, Sheet, print_json
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.texts import printable

_WORST_FIRST = ("failed", "waiting", "restoring", "opening", "idle", "serving")
_COLUMNS = ("application", "state", "versions behind", "time lag", "stores", "version", "since", "reason")


def file_option(*, required: bool) -> Callable[[Command], Command]:
    """Add --file."""
    return click.option(
        "--file", type=click.Path(dir_okay=False, path_type=Path), required=required, show_envvar=True,
        envvar="UNDERSTUDY_APPLICATIONS", help="The file of applications, as `understudy node --applications` has it.",
    )  # fmt: skip


@click.group()
def applications() -> None:
    """Show the applications of a fleet, and change the file that names them.

    A fleet looks at its file while it runs: an application that is added is opened, one that is removed is closed, and
    nothing is restarted. A file that is invalid changes nothing, so `add` and `remove` check the whole of it first.

    \b
    The file, a table for each application:
      [[applications]]
      id = "orders"
      checkpoint = "s3://bucket/checkpoints/orders"
      num_standby_replicas = 1        # what is left out is as in the settings of the node
    """


@applications.command(name="list", epilog=EXIT_CODES_HELP)
@server_options
def list_applications(*, options: ServerOptions) -> None:
    """Show the applications that a fleet serves, the worst first: state, lag, stores, and why one is not served.

    \b
    Examples:
      understudy applications list
      understudy applications list --json | jq -r '.applications[] | select(.state != "serving").application'
    """
    with options._replace(application=None).server() as server:
        body = server.get("/v1/applications")
    options.print_report(body, applications_page)


@applications.command(epilog=EXIT_CODES_HELP)
@click.argument("name", metavar="APPLICATION")
@server_options
def show(name: str, *, options: ServerOptions) -> None:
    """Show all that a fleet says of APPLICATION.

    \b
    Examples:
      understudy applications show orders
    """
    with options._replace(application=None).server() as server:
        body = server.get(f"/v1/applications/{path_segment(name)}")
    options.print_report(body, lambda document: (FieldList(_fields(document)),))


@applications.command(epilog=EXIT_CODES_HELP)
@click.argument("application")
@click.argument("checkpoint")
@click.option("--standbys", type=click.IntRange(min=0), help="Standby replicas.  [default: as of the node]")
@click.option("--aliases", help="File with names for its stores and columns.  [default: as of the node]")
@click.option("--store-bounds", help="File with bounds of its stores.  [default: as of the node]")
@file_option(required=True)
def add(
    application: str,
    checkpoint: str,
    *,
    standbys: int | None,
    aliases: str | None,
    store_bounds: str | None,
    file: Path,
) -> None:
    """Add APPLICATION, the query with this CHECKPOINT, to the file. All else in the file stays as it is written.

    \b
    Examples:
      understudy applications add orders s3://bucket/checkpoints/orders --file fleet.toml
      understudy applications add clicks /data/clicks --standbys 0 --file fleet.toml
    """
    from understudy_shared.fleet.applications_file import add_application  # noqa: PLC0415

    given = {"num_standby_replicas": standbys, "aliases": aliases, "store_bounds": store_bounds}
    own = {name: value for name, value in given.items() if value is not None}
    try:
        add_application(file, {"id": application, "checkpoint": checkpoint, **own})
    except SettingsError as error:
        raise _usage(error) from None
    click.echo(f"{application} is in {file}", err=True)


@applications.command(epilog=EXIT_CODES_HELP)
@click.argument("name", metavar="APPLICATION")
@file_option(required=False)
@server_options
def remove(name: str, *, file: Path | None, options: ServerOptions) -> None:
    """Cut APPLICATION out of the file, with the comment right above it; or let one go that announced itself.

    With --file it is the file that changes. Without one, or with --url, a node or router is asked: all nodes let the
    application go, until its query announces it again, which a running query does within a minute. The checkpoint is
    not touched.

    \b
    Examples:
      understudy applications remove orders --file fleet.toml
      understudy applications remove clicks --url node-1:7101
    """
    is_asked = click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE
    if file is None or is_asked:
        _let_go(name, options)
    else:
        _cut_out(name, file)


def _let_go(application: str, options: ServerOptions) -> None:
    with options._replace(application=None).server() as server:
        body = server.delete(f"/admin/v1/applications/{path_segment(application)}")
    if options.as_json:
        print_json(body)
    click.echo(f"{application} is let go, until its query announces it again", err=True)


def _cut_out(application: str, file: Path) -> None:
    from understudy_shared.fleet.applications_file import remove_application  # noqa: PLC0415

    try:
        remove_application(file, application)
    except SettingsError as error:
        raise _usage(error) from None
    click.echo(f"{application} is no longer in {file}", err=True)


def applications_page(document: Mapping[str, Any]) -> Page:
    """Render the applications of a fleet, the worst first."""
    return (Sheet(_COLUMNS, [_row(each) for each in sorted(document["applications"], key=_badness)]),)


def _badness(application: Mapping[str, Any]) -> tuple[int, bool, float, str]:
    """Return the place of an application: by state, unknown lag before known, the largest lag first."""
    state, lag = application.get("state"), application.get("max_offset_lag")
    place = _WORST_FIRST.index(state) if state in _WORST_FIRST else 0
    return place, lag is not None, -(lag or 0), str(application.get("application"))


def _row(application: Mapping[str, Any]) -> tuple[str, ...]:
    lag_ms = application.get("max_time_lag_ms")
    return (
        printable(str(application.get("application"))),
        printable(str(application.get("state"))),
        _number(application.get("max_offset_lag")),
        "unknown" if lag_ms is None else f"{lag_ms} ms",
        str(len(application.get("stores") or ())),
        _number(application.get("end_offset_position")),
        printable(str(application.get("since", ""))),
        printable(str(application.get("reason") or "")),
    )


def _number(value: object) -> str:
    return "unknown" if value is None else str(value)


def _fields(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    texts = {
        name: ", ".join(map(str, value)) if isinstance(value, list) else value if isinstance(value, str) else None
        for name, value in document.items()
    }
    return [
        ("", name.replace("_", " "), printable(orjson.dumps(document[name]).decode() if text is None else text))
        for name, text in texts.items()
    ]


def _usage(error: SettingsError) -> CommandError:
    return CommandError(error.what, where=error.where, fix=error.fix, exit_code=ExitCode.USAGE)
