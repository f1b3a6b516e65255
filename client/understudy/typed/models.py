"""Reads what dataclasses, pydantic models and TypedDicts say of their fields, and how to make one (pure)."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from understudy.typed.errors import ModelError
from understudy.typed.intervals import CalendarInterval, YearMonthInterval

COLUMN: Final = "column"
"""The metadata of a dataclass's field by which it names a column: `field(metadata={"column": "count(1)"})`."""


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a model. `argument` is its name for `Model.make`, `attribute` that in an instance."""

    attribute: str
    argument: str
    column: str
    annotation: Any
    is_required: bool


@dataclass(frozen=True, slots=True)
class Model:
    """A class that holds columns. `make` takes values by the arguments of the members."""

    name: str
    members: tuple[Member, ...]
    make: Callable[[dict[str, Any]], Any]


def model_of(annotation: Any) -> Model | None:
    """Return the model that a class is; None for all other annotations. Raises ModelError where it cannot be read."""
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
    return Model(name, _dataclass(cls), _maker(cls)) if dataclasses.is_dataclass(cls) else None


def _maker(cls: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda given: cls(**given)


def columns_of(instance: object) -> Mapping[str, Any] | None:
    """Return the columns of an instance of a model, or of a mapping; None of all other values."""
    if isinstance(instance, Mapping):
        return instance
    model = model_of(type(instance))
    return None if model is None else {each.column: getattr(instance, each.attribute) for each in model.members}


def _typed_dict(cls: Any) -> tuple[Member, ...]:
    marked = _hints(cls, include_extras=True)  # `__required_keys__` overlooks marks in annotations that are texts
    marks = {name: typing.get_origin(hint) for name, hint in marked.items()}
    return tuple(
        Member(name, name, name, hint, _is_marked_required(marks[name], name in cls.__required_keys__))
        for name, hint in _hints(cls).items()
    )


def _is_marked_required(mark: object, otherwise: bool) -> bool:
    return mark is typing.Required or (otherwise and mark is not typing.NotRequired)


def _dataclass(cls: Any) -> tuple[Member, ...]:
    hints = _hints(cls)
    return tuple(
        Member(each.name, each.name, each.metadata.get(COLUMN, each.name), hints[each.name], _is_required(each))
        for each in dataclasses.fields(cls)
        if each.init
    )


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _pydantic(cls: Any) -> tuple[Member, ...]:
    found = []
    for name, info in cls.model_fields.items():
        alias = info.validation_alias or info.alias or name
        if not isinstance(alias, str):
            raise ModelError(
                f"{cls.__name__}.{name} has an alias that is not text",
                where=f"{cls.__name__}.{name}",
                fix="Give it the name of its column: Field(alias='...')",
            )
        found.append(Member(name, alias, alias, info.annotation, info.is_required()))
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
