"""The file of applications of a fleet: what it says, what changed in it, and edits by the command line.

A table `[[applications]]` for each: its id, its checkpoint, and the settings that are its own. What a table leaves out
is as in the settings of the process.

Edits add a table at the end, or cut one out, and change no other text. A file is replaced as a whole, so that a service
never reads half of it, and only if services would accept the new one.
"""

from __future__ import annotations

import posixpath
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from understudy_shared.auth.credentials import tables_of
from understudy_shared.base.errors import SettingsError
from understudy_shared.base.files import alone_in, replace_file
from understudy_shared.base.masking import masked_location, masked_value
from understudy_shared.base.texts import clipped, did_you_mean
from understudy_shared.settings import Bytes, ClusterNodeFields, NodeFields, ServiceFields

MAX_APPLICATIONS = 10_000
_HEADER = "[[applications]]"
_HEAD = "# The applications of a fleet: understudy applications --help says what stands here.\n"
LOCAL_SCHEMES = frozenset({"file", "local"})
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az"}
"""Schemes that are other names for the scheme of a store."""


MAX_ID_CHARS = 256


FLEET = "fleet"
"""The name with which the processes of a fleet derive their common keys from the cluster's secret."""


def require_id(application_id: str) -> str:
    """Return the id if it can be a path segment and a folder name, and is not reserved. Raises SettingsError."""
    if application_id == FLEET:
        raise SettingsError(
            f"{clipped(FLEET)} cannot be the id of an application: the processes of a fleet have that name",
            where="id",
            fix="Give it another: its keys and certificates would be those of the whole fleet",
        )
    is_usable = 0 < len(application_id) <= MAX_ID_CHARS and application_id.isprintable()
    if not is_usable or "/" in application_id or application_id in {".", ".."}:
        raise SettingsError(
            f"{clipped(application_id)} cannot be the id of an application",
            where="id",
            fix=f"Give it 1 to {MAX_ID_CHARS} printable characters without a slash, such as orders-by-region",
        )
    return application_id


def _path(given: object) -> object:
    return Path(given) if isinstance(given, str) else given


class ApplicationSpec(BaseModel):
    """One application, as the file says it. None: as in the settings of the process."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)

    id: str
    checkpoint: str = Field(min_length=1)
    aliases: Annotated[Path | None, BeforeValidator(_path)] = None
    store_bounds: Annotated[Path | None, BeforeValidator(_path)] = None
    num_standby_replicas: int | None = None
    max_warmup_replicas: int | None = None
    max_in_flight: int | None = None
    max_scans_in_flight: int | None = None
    max_exports_in_flight: int | None = None
    max_watchers: int | None = None
    overlay_max_bytes: Annotated[Bytes | None, Field(strict=False)] = None

    def overrides(self) -> dict[str, Any]:
        own = self.model_dump(exclude={"id", "checkpoint"}, exclude_none=True)
        return {"application_id": self.id, "checkpoint": self.checkpoint, **own}


_LIMITS = {
    name: field
    for fields in (ServiceFields, NodeFields, ClusterNodeFields)
    for name, field in fields.model_fields.items()
    if name in ApplicationSpec.model_fields and name != "checkpoint"
}
"""The settings of a process whose checks apply to the settings of an application."""


@dataclass(frozen=True, slots=True)
class FileChanges:
    """The changes from one content of the file to the next."""

    added: tuple[ApplicationSpec, ...]
    removed: tuple[str, ...]
    changed: tuple[ApplicationSpec, ...]
    moved: Mapping[str, str]
    """The new id by the old id, for checkpoints whose application was renamed. They are in `added` and `removed`, too.
    """

    def events(self) -> list[str]:
        """Say each change in a sentence."""
        moved_to = set(self.moved.values())
        return [
            *(f"{clipped(old)} is {clipped(new)} now: the same checkpoint" for old, new in self.moved.items()),
            *(f"{clipped(each.id)} was added" for each in self.added if each.id not in moved_to),
            *(f"{clipped(each)} was removed" for each in self.removed if each not in self.moved),
            *(f"{clipped(each.id)} has other settings" for each in self.changed),
        ]


def parse_applications(data: bytes) -> tuple[ApplicationSpec, ...]:
    """Parse the file. Raises SettingsError, which names the table and what to write."""
    try:
        document = tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise SettingsError("the file is not UTF-8", fix="Save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"it is not TOML: {error}", fix=f"Write a table {_HEADER} for each application") from None
    for name in document:
        if name != "applications":
            hint = did_you_mean(name, ["applications"])
            raise SettingsError(f"unknown table {clipped(name)}", fix=f"{hint}Write {_HEADER} for each application")
    tables = document.get("applications", [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise SettingsError("applications must be a list of tables", fix=f"Write {_HEADER} above each application")
    if len(tables) > MAX_APPLICATIONS:
        raise SettingsError(f"it has {len(tables)} applications, above {MAX_APPLICATIONS}", fix="Run several fleets")
    specs = tuple([_spec(table, number) for number, table in enumerate(tables, 1)])
    require_distinct(specs)
    return specs


def require_distinct(specs: Iterable[ApplicationSpec]) -> None:
    """Raise SettingsError for two applications with one id, and for two with one checkpoint."""
    numbers: dict[str, int] = {}
    places: dict[str, str] = {}
    for number, spec in enumerate(specs, 1):
        if spec.id in numbers:
            raise SettingsError(
                f"two applications have the id {clipped(spec.id)}",
                where=f"applications {numbers[spec.id]} and {number}",
                fix="Give each an id of its own",
            )
        numbers[spec.id] = number
        other = places.setdefault(normal_location(spec.checkpoint), spec.id)
        if other != spec.id:
            raise SettingsError(
                f"{clipped(other)} and {clipped(spec.id)} have one checkpoint",
                where=masked_location(spec.checkpoint),
                fix="Remove one of them: a query is one application",
            )


def normal_location(location: str) -> str:
    """Return the one form of a checkpoint's location, for comparing."""
    place, path = split_location(location)
    return (place or path) if path == "/" else place + path


def split_location(location: str) -> tuple[str, str]:
    """Return the place of a location (empty for local paths) and the path there, both in normal form. Other names of a
    store's scheme, capitals in a host, `.` and `..`, repeated slashes and a slash at the end make no difference.
    Symbolic links are not followed.
    """
    scheme, separator, rest = location.partition(":")
    if separator and scheme.lower() in LOCAL_SCHEMES and rest.startswith("/"):
        return "", _normal_path(rest)
    scheme, separator, rest = location.partition("://")
    if not separator:
        return "", _normal_path(Path(location).absolute().as_posix())
    place, _, path = rest.partition("/")
    return f"{_SAME_STORE.get(scheme.lower(), scheme.lower())}://{place.lower()}", _normal_path(path)


def _normal_path(path: str) -> str:
    return posixpath.normpath(f"/{path.lstrip('/')}")


def changes(before: Sequence[ApplicationSpec], after: Sequence[ApplicationSpec]) -> FileChanges:
    old, new = {each.id: each for each in before}, {each.id: each for each in after}
    added = tuple([each for each in after if each.id not in old])
    removed = tuple([each.id for each in before if each.id not in new])
    places = {normal_location(each.checkpoint): each.id for each in added}
    left = {each: normal_location(old[each].checkpoint) for each in removed}
    return FileChanges(
        added=added,
        removed=removed,
        changed=tuple([each for each in after if each.id in old and each != old[each.id]]),
        moved={each: places[place] for each, place in left.items() if place in places},
    )


def add_application(path: Path, settings: Mapping[str, object]) -> None:
    """Append an application to a file, which is created if it does not exist. Raises SettingsError."""
    lines = [_HEADER, *(f"{name} = {_toml(value)}" for name, value in settings.items())]
    _change(path, lambda text: f"{text.rstrip()}\n\n{chr(10).join(lines)}\n".lstrip(), may_be_new=True)


def remove_application(path: Path, application_id: str) -> None:
    """Cut an application out of a file, with the comment above it. Raises SettingsError if the file lacks it."""

    def without(text: str) -> str:
        before = parse_applications(text.encode())
        ids = [each.id for each in before]
        if application_id not in ids:
            fix = did_you_mean(application_id, ids) + "understudy applications list shows them"
            raise SettingsError(f"there is no application {clipped(application_id)}", where=str(path), fix=fix)
        parts = list(tables_of(text))
        tables = [number for number, part in enumerate(parts) if f"\n{_HEADER}" in f"\n{part}"]
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


def _spec(table: Mapping[str, Any], number: int) -> ApplicationSpec:
    name = table.get("id")
    where = f"{_HEADER} number {number}" if not isinstance(name, str) else f"application {clipped(name)}"
    try:
        spec = ApplicationSpec(**table)
        for limit, field in _LIMITS.items():
            if (value := getattr(spec, limit)) is not None:
                _check_limit(limit, value, field.metadata)
        require_id(spec.id)
    except ValidationError as error:
        raise _refused(error, where) from None
    except SettingsError as error:
        raise SettingsError(error.what, where=where, fix=error.fix) from None
    return spec


def _check_limit(name: str, value: object, bounds: Sequence[Any]) -> None:
    if not isinstance(value, int):
        return
    least = next((bound.ge for bound in bounds if hasattr(bound, "ge")), None)
    most = next((bound.le for bound in bounds if hasattr(bound, "le")), None)
    if (least is not None and value < least) or (most is not None and value > most):
        between = f"at least {least}" if most is None else f"{least} to {most}"
        raise SettingsError(f"{name}={value} is out of range", fix=f"Write {between}")


def _refused(error: ValidationError, where: str) -> SettingsError:
    problem = error.errors(include_url=False)[0]
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        example = '"orders-by-region"' if name == "id" else '"s3://bucket/checkpoints/orders"'
        return SettingsError(f"{name} is missing", where=where, fix=f"Write {name} = {example}")
    if problem["type"] == "extra_forbidden":
        known = sorted(ApplicationSpec.model_fields)
        return SettingsError(
            f"unknown key {clipped(name)}", where=where, fix=f"{did_you_mean(name, known)}Known: {', '.join(known)}"
        )
    return SettingsError(
        f"{name}={masked_value(problem['input'])}: {problem['msg']}", where=where, fix="Correct the value"
    )
