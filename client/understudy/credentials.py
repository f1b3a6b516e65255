"""The key or token that commands send: the variable UNDERSTUDY_API_KEY, or a file that UNDERSTUDY_API_KEY_FILE names.

Never from an argument, which every user of the machine can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from understudy.exits import CommandError, ExitCode

KEY, KEY_FILE = "UNDERSTUDY_API_KEY", "UNDERSTUDY_API_KEY_FILE"
MAX_KEY_BYTES = 8192

_HOW = f"Set {KEY}, or {KEY_FILE} to a file with the key. An operator makes one: understudy keys new"

FIXES = {
    "unauthenticated": _HOW,
    "forbidden": "Use a key whose role allows this, or have the role changed where the services have their credentials",
}
"""Advice about a refusal, by the type of the problem, for users of the command line."""


def authorization(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the header that shows the key; empty without a key. Raises CommandError for a key that cannot be sent."""
    key, file = environ.get(KEY, ""), environ.get(KEY_FILE, "")
    if key and file:
        raise _wrong(f"both {KEY} and {KEY_FILE} are set", "Unset one of them")
    where = KEY_FILE if file else KEY
    if file:
        key = _read(Path(file))
    key = key.strip()
    if not (key.isascii() and key.isprintable()) or " " in key:
        fix = "It is one word: usk_..., as understudy keys new says it, or a token of an issuer"
        raise _wrong(f"{where} holds something that is no key", fix)
    if file and not key:
        raise _wrong(f"the file {file} is empty", _HOW)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_KEY_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise _wrong(
            f"the key cannot be read: {error.strerror or error}", f"Check the path in {KEY_FILE}: {path}"
        ) from None


def _wrong(what: str, fix: str) -> CommandError:
    return CommandError(what, where="the environment", fix=fix, exit_code=ExitCode.USAGE)
