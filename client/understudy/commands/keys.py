"""`understudy keys`: makes, lists and revokes API keys in the file that services read by --credentials-file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson

from understudy.terminal.console import Sheet, print_json, print_lines, print_page
from understudy.terminal.exits import EXIT_CODES_HELP, CommandError, ExitCode
from understudy_shared.auth.api_keys import new_key
from understudy_shared.auth.credentials import CredentialsError, StoredKey
from understudy_shared.auth.key_file import add_key, revoke_key, stored_keys
from understudy_shared.base.texts import printable

Command = TypeVar("Command", bound=Callable[..., Any])

_LIFETIME = re.compile(r"(\d{1,5})([hd])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1)}
_COLUMNS = ("id", "principal", "roles", "created", "expires")


def file_option(command: Command) -> Command:
    """Add --credentials-file."""
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
@file_option
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
    now = datetime.now(UTC).replace(microsecond=0)
    expires_at = None if expires_in is None else now + lifetime(expires_in)
    key = new_key()
    if output is not None:
        write_private(output, f"{key.text}\n")
    try:
        add_key(file, key, principal=principal, roles=roles, now=now, expires_at=expires_at)
    except CredentialsError as error:
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
@file_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per key.")
def list_keys(file: Path, *, as_json: bool) -> None:
    """Show the keys of the file: whose they are, what they may do, when they end.

    \b
    Examples:
      understudy keys list --credentials-file credentials.toml
    """
    try:
        found = stored_keys(file)
    except CredentialsError as error:
        raise _usage(error) from None
    if as_json:
        for key in found:
            print_json(orjson.dumps(key.model_dump(mode="json", exclude={"sha256"})))
    else:
        print_page((Sheet(_COLUMNS, [key_row(key, datetime.now(UTC)) for key in found]),))


@keys.command(epilog=EXIT_CODES_HELP)
@click.argument("key_id")
@file_option
def revoke(key_id: str, *, file: Path) -> None:
    """Remove the key with the id KEY_ID. Services refuse it within two seconds.

    \b
    Examples:
      understudy keys revoke 0123456789abcdef --credentials-file credentials.toml
    """
    try:
        revoke_key(file, key_id)
    except CredentialsError as error:
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
    """Return a key's row for people."""
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


def _usage(error: CredentialsError) -> CommandError:
    return CommandError(error.what, where=error.where, fix=error.fix, exit_code=ExitCode.USAGE)
