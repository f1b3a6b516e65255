"""The flags of `understudy serve`, `node` and `router`: one for each setting that the services declare (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic.fields import FieldInfo

from understudy_shared.base.texts import size_text
from understudy_shared.settings import (
    AnnouncedFields,
    BusFields,
    ClusterNodeFields,
    Fields,
    FleetFields,
    HttpFields,
    NodeFields,
    RouterFields,
    ServiceFields,
)

Kind = Literal["text", "number", "size", "path", "switch"]
_KINDS: tuple[tuple[type, Kind], ...] = ((bool, "switch"), (int, "number"), (Path, "path"), (str, "text"))


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting as a flag. `default` is the service's: a value, or words when it is derived."""

    name: str
    kind: Kind
    default: int | str | bool | None
    help: str
    is_required: bool = False

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as the help shows it."""
        if self.is_required:
            return "[required]"
        if self.default is None:
            return "[default: none]"
        if self.kind == "switch":
            return f"[default: {'on' if self.default else 'off'}]"
        is_size = self.kind == "size" and isinstance(self.default, int)
        return f"[default: {size_text(int(self.default)) if is_size else self.default}]"


def flags_of(*declarations: type[Fields]) -> tuple[Flag, ...]:
    """Return a flag for each setting, required ones first. What is declared again later has the last declaration.

    The checkpoint is an argument of the commands.
    """
    fields: dict[str, FieldInfo] = {}
    for each in declarations:
        fields |= each.model_fields
    flags = [_flag(name, field) for name, field in fields.items() if name != "checkpoint"]
    return tuple(sorted(flags, key=lambda flag: not flag.is_required))


def _flag(name: str, field: FieldInfo) -> Flag:
    default: Any = None
    if not field.is_required():
        more = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        default = more.get("derived", None if field.default == "" else field.default)
    return Flag(name, _kind(name, field.annotation), default, field.description or "", field.is_required())


def _kind(name: str, annotation: Any) -> Kind:
    if "bytes" in name.split("_"):
        return "size"
    plain = next(iter(get_args(annotation)), annotation)
    return next(kind for base, kind in _KINDS if issubclass(plain, base))


SERVE_FLAGS = flags_of(FleetFields, ServiceFields, NodeFields, HttpFields)
NODE_FLAGS = flags_of(BusFields, FleetFields, AnnouncedFields, ServiceFields, ClusterNodeFields, NodeFields, HttpFields)
ROUTER_FLAGS = flags_of(BusFields, ServiceFields, RouterFields, HttpFields)
