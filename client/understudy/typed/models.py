"""Models of keys and values: the fields of dataclasses, pydantic models and TypedDicts, how to make one, and the source
of models that fit a store (pure).
"""

from __future__ import annotations

import dataclasses
import keyword
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from understudy.typed.columns import StoreEntry, TypedColumn
from understudy.typed.python_types import SCALARS, CalendarInterval, ModelError, YearMonthInterval
from understudy_shared.base.texts import printable
from understudy_shared.base.words import StoreKind
from understudy_shared.spark.types import (
    ArrayType,
    MapType,
    SparkType,
    StructType,
    TimestampNtzType,
    TimestampType,
    VoidType,
    unique_names,
)

COLUMN: Final = "column"
"""The metadata key that names the column of a dataclass's field: `field(metadata={"column": "count(1)"})`."""


@dataclass(frozen=True, slots=True)
class ModelField:
    """A field of a model. `argument` is its name for `Model.make`, `attribute` its name in an instance."""

    attribute: str
    argument: str
    column: str
    annotation: Any
    is_required: bool


@dataclass(frozen=True, slots=True)
class Model:
    """A class that holds columns. `make` takes values by the arguments of the members."""

    name: str
    members: tuple[ModelField, ...]
    make: Callable[[dict[str, Any]], Any]


def model_of(annotation: Any) -> Model | None:
    """Return a class as a model; None for all other annotations. Raises ModelError if it cannot be read."""
    return _model_of_class(annotation) if isinstance(annotation, type) else None


@lru_cache(maxsize=1024)
def _model_of_class(cls: Any) -> Model | None:
    if cls in {YearMonthInterval, CalendarInterval}:
        return None
    name: str = cls.__name__
    if typing.is_typeddict(cls):
        return Model(name, _typed_dict(cls), dict)
    pydantic = sys.modules.get("pydantic")  # who defines such a model has imported it
    if pydantic is not None and issubclass(cls, pydantic.BaseModel):
        return Model(name, _pydantic(cls), cls.model_validate)
    if not dataclasses.is_dataclass(cls):
        return None
    make: Any = cls
    return Model(name, _dataclass(cls), lambda given: make(**given))


def columns_of(instance: object) -> Mapping[str, Any] | None:
    """Return the columns of an instance of a model, or of a mapping; None for all other values."""
    if isinstance(instance, Mapping):
        return instance
    model = model_of(type(instance))
    return None if model is None else {each.column: getattr(instance, each.attribute) for each in model.members}


def _typed_dict(cls: Any) -> tuple[ModelField, ...]:
    marked = _hints(cls, include_extras=True)  # `__required_keys__` overlooks marks in annotations that are texts
    found = []
    for name, hint in _hints(cls).items():
        mark = typing.get_origin(marked[name])
        is_required = mark is typing.Required or (name in cls.__required_keys__ and mark is not typing.NotRequired)
        found.append(ModelField(name, name, name, hint, is_required))
    return tuple(found)


def _dataclass(cls: Any) -> tuple[ModelField, ...]:
    hints = _hints(cls)
    return tuple(
        ModelField(each.name, each.name, each.metadata.get(COLUMN, each.name), hints[each.name], _is_required(each))
        for each in dataclasses.fields(cls)
        if each.init
    )


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _pydantic(cls: Any) -> tuple[ModelField, ...]:
    found = []
    for name, info in cls.model_fields.items():
        alias = info.validation_alias or info.alias or name
        if not isinstance(alias, str):
            raise ModelError(
                f"{cls.__name__}.{name} has an alias that is not text",
                where=f"{cls.__name__}.{name}",
                fix="Give it the name of its column: Field(alias='...')",
            )
        found.append(ModelField(name, alias, alias, info.annotation, info.is_required()))
    return tuple(found)


def _hints(cls: Any, *, include_extras: bool = False) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=include_extras)
    except (NameError, TypeError) as error:
        raise ModelError(
            f"the annotations of {cls.__name__} cannot be read: {error}",
            where=cls.__name__,
            fix="Define the model, and the types that it names, at the top of a module",
        ) from None


_MODULES: Final = ("datetime", "decimal")
"""The modules whose types are written with the module: columns are often named `date` or `time`."""

_USED: Final = frozenset(
    {"bool", "bytes", "dict", "field", "float", "int", "list", "str", "tuple"} | {*_MODULES, "dataclass", "Field"}
)
"""Names that the source uses itself: a field of such a name would hide them."""


@dataclass(slots=True)
class _Source:
    """The classes so far, those that others name first."""

    is_pydantic: bool
    taken: set[str]
    classes: list[str] = field(default_factory=list)

    def add(self, name: str, columns: Sequence[TypedColumn]) -> str:
        """Add a class with these columns, and return its name."""
        name = _unused(name, self.taken)
        self.taken.add(name)
        members: set[str] = set()
        lines = []
        for column in columns:
            member = _unused(self._identifier(column.name), members)
            members.add(member)
            annotation = self._annotation(column.type, name + _class_name(column.name))
            if column.nullable is not False and annotation != "None":
                annotation += " | None"
            lines.append(f"    {member}: {annotation}{self._named(member, column.name)}")
        head = [f"class {name}(BaseModel):"] if self.is_pydantic else ["@dataclass(frozen=True)", f"class {name}:"]
        self.classes.append("\n".join([*head, *(lines or ["    pass"])]))
        return name

    def _identifier(self, column: str) -> str:
        word = re.sub(r"\W+", "_", column, flags=re.ASCII).strip("_") or "column"
        word = f"column_{word}" if word[0].isdigit() else word
        if self.is_pydantic and (word.startswith("model_") or hasattr(_base_model(), word)):
            word = f"{word}_"
        return f"{word}_" if keyword.iskeyword(word) or word in _USED or word in self.taken else word

    def _named(self, member: str, column: str) -> str:
        if member == column:
            return ""
        named = f"alias={column!r}" if self.is_pydantic else f"metadata={{{COLUMN!r}: {column!r}}}"
        return f" = {'Field' if self.is_pydantic else 'field'}({named})"

    def _annotation(self, spark_type: SparkType, name: str) -> str:
        match spark_type:
            case StructType(fields):
                unique = unique_names(each.name for each in fields)
                nullable = False if _is_window(spark_type) else None
                columns = [TypedColumn(each, of.type, nullable) for each, of in zip(unique, fields, strict=True)]
                return self.add(name, columns)
            case ArrayType(element):
                return f"list[{self._or_none(element, name)}]"
            case MapType(key, value):
                of_key, of_value = self._annotation(key, f"{name}Key"), self._or_none(value, name)
                if isinstance(key, StructType | ArrayType | MapType):
                    return f"list[tuple[{of_key}, {of_value}]]"
                return f"dict[{of_key}, {of_value}]"
            case VoidType():
                return "None"
            case _:
                found = SCALARS[type(spark_type)][0]
                return f"{found.__module__}.{found.__name__}" if found.__module__ in _MODULES else found.__name__

    def _or_none(self, spark_type: SparkType, name: str) -> str:
        annotation = self._annotation(spark_type, name)
        return annotation if annotation == "None" else f"{annotation} | None"


def models_source(entry: StoreEntry, *, pydantic: bool) -> str:
    """Return a module with a class for the key of a store, and for its value and its result, if it has them."""
    name = _class_name(entry.store) or "Store"
    source = _Source(pydantic, {"BaseModel", "YearMonthInterval", "CalendarInterval"})
    source.add(f"{name}Key", entry.key)
    if entry.user_key:
        source.add(f"{name}EntryKey", (*entry.key, *entry.user_key))
    if entry.value and entry.kind not in {StoreKind.SET, StoreKind.TIMERS}:
        source.add(f"{name}Value", entry.value)
    if entry.result:
        source.add(f"{name}Result", entry.result)
    body = "\n\n\n".join(source.classes)
    comment = f"# The types of store {printable(entry.store)}."
    return f"{comment}\n\n" + "\n".join(_imports(body, pydantic=pydantic)) + f"\n\n\n{body}\n"


def _imports(body: str, *, pydantic: bool) -> Iterable[str]:
    yield from ["from __future__ import annotations", ""]
    yield from (f"import {module}" for module in _MODULES if f"{module}." in body)
    if pydantic:
        yield f"from pydantic import BaseModel{', Field' if '= Field(' in body else ''}"
    else:
        yield f"from dataclasses import dataclass{', field' if '= field(' in body else ''}"
    intervals = [each for each in ("CalendarInterval", "YearMonthInterval") if each in body]
    if intervals:
        yield from ["", f"from understudy.typed import {', '.join(intervals)}"]


def _class_name(text: str) -> str:
    """Return text as part of the name of a class: `airport_hours` is AirportHours."""
    words = re.split(r"\W+|_", text, flags=re.ASCII)
    name = "".join(word[0].upper() + word[1:] for word in words if word)
    return f"Store{name}" if name[:1].isdigit() else name


def _unused(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    return next(f"{name}_{number}" for number in range(2, len(taken) + 3) if f"{name}_{number}" not in taken)


def _is_window(struct: StructType) -> bool:
    """Whether a struct is a window, whose bounds are never null."""
    is_time = all(isinstance(each.type, TimestampType | TimestampNtzType) for each in struct.fields)
    return is_time and [each.name for each in struct.fields] == ["start", "end"]


def _base_model() -> Any:
    from pydantic import BaseModel  # noqa: PLC0415

    return BaseModel
