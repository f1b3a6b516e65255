"""`understudy applications` and `understudy keys`: the files that name the applications and API keys of services."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
from click.core import ParameterSource

from understudy.calls.http_client import path_segment
from understudy.calls.options import Command, ServerOptions, server_options
from understudy.terminal.console import FieldList, Page, Sheet, print_json, print_lines, print_page
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.texts import printable

if TYPE_CHECKING:
    from understudy_shared.auth.credentials import StoredKey

_WORST_FIRST = ("failed", "waiting", "restoring", "opening", "idle", "serving")
_APPLICATION_COLUMNS = ("application", "state", "versions behind", "time lag", "stores", "version", "since", "reason")


def applications_option(*, required: bool) -> Callable[[Command], Command]:
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
    """Show all that a fleet says about APPLICATION.

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
@applications_option(required=True)
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
@applications_option(required=False)
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
    return (Sheet(_APPLICATION_COLUMNS, [_row(each) for each in sorted(document["applications"], key=_badness)]),)


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


def _usage(error: UnderstudyError) -> CommandError:
    return CommandError(error.what, where=error.where, fix=error.fix, exit_code=ExitCode.USAGE)


_LIFETIME = re.compile(r"(\d{1,5})([hd])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1)}
_KEY_COLUMNS = ("id", "principal", "roles", "created", "expires")


def credentials_option(command: Command) -> Command:
    return click.option(
        "--credentials-file",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="UNDERSTUDY_CREDENTIALS_FILE",
        show_envvar=True,
        required=True,
        help="The file that services have as --credentials-file. They notice a change within two seconds.",
    )(command)


@click.group(epilog=EXIT_CODES_HELP)
def keys() -> None:
    """Make, list and revoke the keys that services ask for when they have a --credentials-file.

    The file keeps a hash of each key and never the key itself. To replace a key, make a second one
    for the same principal, give it to those who use the first, and revoke that one.

    \b
    Examples:
      understudy keys new dashboard --role reader --credentials-file credentials.toml
      understudy keys list --credentials-file credentials.toml
      understudy keys revoke 0123456789abcdef --credentials-file credentials.toml
    """


@keys.command(epilog=EXIT_CODES_HELP)
@click.argument("principal")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    help="What the key may do: reader, monitor, admin, or a role of the file. Several are added up.",
)
@click.option("--expires-in", metavar="TIME", help="When it ends, such as 90d or 12h.  [default: never]")
@credentials_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write the key to this new file, which only you may read, and do not print it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the key and its id as JSON.")
def new(
    principal: str, *, roles: tuple[str, ...], expires_in: str | None, file: Path, output: Path | None, as_json: bool
) -> None:
    """Make a key for PRINCIPAL, the program or person that will use it, and print it once.

    reader reads every store; monitor sees metrics, lag and health; admin drains nodes, too.

    \b
    Examples:
      understudy keys new dashboard --role reader --expires-in 90d --credentials-file credentials.toml
      understudy keys new prometheus --role monitor --credentials-file credentials.toml --output prometheus.key
    """
    from understudy_shared.auth.credentials import add_key  # noqa: PLC0415  # slow to import
    from understudy_shared.auth.presented import new_key  # noqa: PLC0415

    now = datetime.now(UTC).replace(microsecond=0)
    expires_at = None if expires_in is None else now + lifetime(expires_in)
    key = new_key()
    if output is not None:
        write_private(output, f"{key.text}\n")
    try:
        add_key(file, key, principal=principal, roles=roles, now=now, expires_at=expires_at)
    except SettingsError as error:
        if output is not None:
            output.unlink(missing_ok=True)  # no service would take that key
        raise _usage(error) from None
    if as_json:
        shown = {"key": key.text} if output is None else {"output": str(output)}
        print_json(orjson.dumps({"id": key.key_id, **shown}))
        return
    if output is None:
        print_lines([key.text])
        click.echo(f"This is shown once. Its digest is in {file}, under the id {key.key_id}.", err=True)
    else:
        click.echo(f"The key is in {output}; its digest is in {file}, under the id {key.key_id}.", err=True)


@keys.command(name="list", epilog=EXIT_CODES_HELP)
@credentials_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per key.")
def list_keys(file: Path, *, as_json: bool) -> None:
    """Show the keys of the file: whose they are, what they may do, when they end.

    \b
    Examples:
      understudy keys list --credentials-file credentials.toml
    """
    from understudy_shared.auth.credentials import stored_keys  # noqa: PLC0415  # slow to import

    try:
        found = stored_keys(file)
    except SettingsError as error:
        raise _usage(error) from None
    if as_json:
        for key in found:
            print_json(orjson.dumps(key.model_dump(mode="json", exclude={"sha256"})))
    else:
        print_page((Sheet(_KEY_COLUMNS, [key_row(key, datetime.now(UTC)) for key in found]),))


@keys.command(epilog=EXIT_CODES_HELP)
@click.argument("key_id")
@credentials_option
def revoke(key_id: str, *, file: Path) -> None:
    """Remove the key with the id KEY_ID. Services refuse it within two seconds.

    \b
    Examples:
      understudy keys revoke 0123456789abcdef --credentials-file credentials.toml
    """
    from understudy_shared.auth.credentials import revoke_key  # noqa: PLC0415  # slow to import

    try:
        revoke_key(file, key_id)
    except SettingsError as error:
        raise _usage(error) from None
    click.echo(f"{printable(key_id)} is revoked")


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner may read. Raises CommandError, also when the file exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        what = f"the key cannot be written: {error.strerror or error}"
        raise CommandError(what, where=str(path), fix="Name a new file", exit_code=ExitCode.USAGE) from None


def key_row(key: StoredKey, now: datetime) -> tuple[str, ...]:
    ends = "never" if key.expires_at is None else f"{key.expires_at:%Y-%m-%d %H:%M}"
    ended = key.expires_at is not None and key.expires_at <= now
    made = "?" if key.created_at is None else f"{key.created_at:%Y-%m-%d}"
    roles = ", ".join(key.roles)
    return key.id, printable(key.principal), printable(roles), made, f"{ends} (expired)" if ended else ends


def lifetime(text: str) -> timedelta:
    """Parse `90d` or `12h` as a time. Raises CommandError for anything else, and for 0."""
    found = _LIFETIME.fullmatch(text)
    time = timedelta() if found is None else int(found[1]) * _UNITS[found[2]]
    if not time:
        raise CommandError(
            f"{text!r} is not a time",
            where="--expires-in",
            fix="Write hours or days: 12h, 90d",
            exit_code=ExitCode.USAGE,
        )
    return time
