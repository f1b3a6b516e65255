"""Changes to the file of applications: a table is added at its end, or cut out. All else stays as it was written.

A file is replaced as a whole, so that a service never reads half of it, and only by one that services would take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import orjson

from understudy_shared.auth.key_file import alone_in, replace_file, tables_of
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.printable import clipped
from understudy_shared.base.suggest import did_you_mean
from understudy_shared.fleet.applications_file import parse_applications

_HEAD = "# The applications of a fleet: understudy applications --help says what stands here.\n"
_TABLE = "[[applications]]"


def add_application(path: Path, settings: Mapping[str, object]) -> None:
    """Write an application to the end of a file, which is made if it is not there. Raises SettingsError."""
    lines = [_TABLE, *(f"{name} = {_toml(value)}" for name, value in settings.items())]
    _change(path, lambda text: f"{text.rstrip()}\n\n{chr(10).join(lines)}\n".lstrip(), may_be_new=True)


def remove_application(path: Path, application_id: str) -> None:
    """Cut an application out of a file, with the comment above it. Raises SettingsError when it is not there."""

    def without(text: str) -> str:
        before = parse_applications(text.encode())
        ids = [each.id for each in before]
        if application_id not in ids:
            fix = did_you_mean(application_id, ids) + "understudy applications list shows them"
            raise SettingsError(f"there is no application {clipped(application_id)}", where=str(path), fix=fix)
        parts = list(tables_of(text))
        tables = [number for number, part in enumerate(parts) if f"\n{_TABLE}" in f"\n{part}"]
        left = ""
        if len(tables) == len(before):
            cut = tables[ids.index(application_id)]
            left = "".join(part for number, part in enumerate(parts) if number != cut)
        if not tables or parse_applications(left.encode()) != tuple(
            each for each in before if each.id != application_id
        ):
            fix = "Remove it by hand"
            raise SettingsError("the applications are not written as tables of their own", where=str(path), fix=fix)
        return left

    _change(path, without)


def _change(path: Path, changed: Callable[[str], str], *, may_be_new: bool = False) -> None:
    """Replace a file by its changed text, unless services would refuse the result."""
    try:
        with alone_in(path.absolute().parent):
            is_new = may_be_new and not path.exists()
            text = changed(_HEAD if is_new else path.read_text(encoding="utf-8"))
            parse_applications(text.encode())
            replace_file(path, text, mode=0o644 if is_new else path.stat().st_mode & 0o777)
    except (OSError, UnicodeDecodeError) as error:
        what = f"the file cannot be changed: {getattr(error, 'strerror', None) or error}"
        raise SettingsError(what, where=str(path), fix="Check the path and who may write there") from None


def _toml(value: object) -> str:
    """Write a text or a number as TOML: JSON's form is valid, except for DEL."""
    return orjson.dumps(value).decode().replace("\x7f", "\\u007f")
