"""The credentials and the trust of commands: the key or token of the environment, --ca-file, --cert-file, --key-file.

A key is never an argument, which every user of the machine can read. Without a file of authorities the system's are
trusted. A certificate of its own is needed where a proxy asks for one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from understudy.client.credentials import HOW, VARIABLES, Credential, credential, trust
from understudy.client.errors import UsageError
from understudy.terminal.exits import CommandError, ExitCode

FIXES = {
    "unauthenticated": HOW,
    "forbidden": "Use a key whose role allows this, or have the role changed where the services have their credentials",
}
"""Advice about a refusal, by the type of the problem, for users of the command line."""


def shown_credential(environ: Mapping[str, str]) -> Credential:
    """Return the key that calls show, which may be empty. Raises CommandError for a key that cannot be sent."""
    try:
        return credential(environ)
    except UsageError as error:
        raise CommandError(error.what, where="the environment", fix=error.fix, exit_code=ExitCode.USAGE) from None


def authorization(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the header that shows the key; empty without a key. Raises CommandError for a key that cannot be sent."""
    key = shown_credential(environ).key
    return {"Authorization": f"Bearer {key}"} if key else {}


Command = TypeVar("Command", bound=Callable[..., Any])

_META = "understudy.calls.credentials"
_HELP = {
    "ca_file": "PEM file with the authorities to trust at an https:// URL, instead of the system's.",
    "cert_file": "Client certificate to show, as PEM, where one is asked for.",
    "key_file": "The key of that certificate, if it is in another file.",
}
UNTRUSTED_FIX = "Name with --ca-file, or UNDERSTUDY_CA_FILE, the PEM file of the authority that signed its certificate"


def trust_options(command: Command) -> Command:
    """Add --ca-file, --cert-file and --key-file: they count for every call of the command."""
    for name in reversed(VARIABLES):
        option = click.option(
            "--" + name.replace("_", "-"),
            name,
            type=click.Path(dir_okay=False),
            envvar=VARIABLES[name],
            show_envvar=True,
            expose_value=False,
            callback=_keep,
            help=_HELP[name],
        )
        command = option(command)
    return command


def _keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(_META, {})[parameter.name] = value


def client_context(environ: Mapping[str, str], *, is_own: bool = False) -> ssl.SSLContext:
    """Make the context for calls by https. `is_own`: this process has just started the service, on its own machine, so
    it needs no proof of identity. Raises CommandError for files that cannot be used.
    """
    context = click.get_current_context(silent=True)
    given: Mapping[str, str] = {} if context is None else context.meta.get(_META, {})
    try:
        made = trust(environ, None, **{name: given.get(name) for name in VARIABLES}).context()
    except UsageError as error:
        raise CommandError(error.what, where=error.where, fix=error.fix, exit_code=ExitCode.USAGE) from None
    if is_own:
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made
