"""The key or token that commands send, as the Python client reads it from the environment (`client/credentials.py`).

Never from an argument, which every user of the machine can read.
"""

from __future__ import annotations

from collections.abc import Mapping

from understudy.client.credentials import HOW, Credential, credential
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
