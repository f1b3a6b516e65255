"""Whether an annotation can hold the values of a Spark type, and the conversion of them, decided once (pure)."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, Final

from understudy.typed.columns import Column
from understudy.typed.errors import ModelError
from understudy.typed.models import Model, model_of
from understudy.typed.plain import MISMATCHES, Convert, list_maker, or_null, pairs_of, to_plain
from understudy.typed.scalars import fit_scalar, fitting_names
from understudy_shared.base.suggest import did_you_mean
from understudy_shared.spark.names import unique_names
from understudy_shared.spark.types import ArrayType, MapType, SparkType, StructType, VoidType

_ANYTHING: Final = (Any, object)
_LISTS: Final = (list, Sequence, MutableSequence, Iterable)
_MAPPINGS: Final = (dict, Mapping, MutableMapping)


def fit(annotation: Any, column: Column, where: str) -> Convert:
    """Return the conversion of a column's printed values, nulls among them, to what an annotation wants. Raises
    ModelError for one that cannot hold them; `where` names the field.
    """
    wanted = _alternatives(annotation)
    takes_null = type(None) in wanted or any(each in _ANYTHING for each in wanted)
    if column.nullable and not takes_null:
        raise _misfit(annotation, column, where, "and may be null")
    if isinstance(column.type, VoidType) and takes_null:
        return lambda _: None
    fitting, errors = _fit_each([each for each in wanted if each is not type(None)], column, where)
    if not fitting:
        raise errors[0] if errors else _misfit(annotation, column, where)
    first = fitting[0] if len(fitting) == 1 else _first_of(fitting)
    return or_null(first) if takes_null else _never_null(first)


def _fit_each(wanted: Sequence[Any], column: Column, where: str) -> tuple[list[Convert], list[ModelError]]:
    """Return the conversions of those that fit, and the errors of what is inside the others."""
    fitting, errors = [], []
    for each in wanted:
        try:
            convert = _fit_one(each, column, where)
        except ModelError as error:
            errors.append(error)
        else:
            fitting += [] if convert is None else [convert]
    return fitting, errors


def fit_struct(model: Model, columns: Sequence[Column], where: str) -> list[tuple[str, str, Convert, bool]]:
    """Return of each field of a model its argument, its column, the conversion, and whether it has no default."""
    by_name = {each.name: each for each in columns}
    found = []
    for member in model.members:
        path = f"{where}.{member.attribute}"
        column = by_name.get(member.column)
        if column is None:
            names = ", ".join(by_name) or "no columns"
            raise ModelError(
                f"there is no column {member.column!r}",
                where=path,
                fix=f"{did_you_mean(member.column, by_name)}There are: {names}",
            )
        found.append((member.argument, member.column, fit(member.annotation, column, path), member.is_required))
    return found


def _alternatives(annotation: Any) -> list[Any]:
    """Return the members of a union, in their order; of all else the annotation itself."""
    while True:
        if isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        else:
            break
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return [each for part in typing.get_args(annotation) for each in _alternatives(part)]
    return [type(None) if annotation is None else annotation]


def _fit_one(wanted: Any, column: Column, where: str) -> Convert | None:
    """Return the conversion of values that are not null; None where they do not fit."""
    if wanted in _ANYTHING:
        return to_plain(column.type)
    match column.type:
        case StructType():
            return _fit_of_struct(wanted, column.type, where)
        case ArrayType(element):
            return _fit_of_array(wanted, element, where)
        case MapType():
            return _fit_of_map(wanted, column.type, where)
        case _:
            return fit_scalar(wanted, column.type)


def _fit_of_struct(wanted: Any, struct: StructType, where: str) -> Convert | None:
    names = unique_names(each.name for each in struct.fields)
    columns = [Column(name, each.type) for name, each in zip(names, struct.fields, strict=True)]
    model = model_of(wanted)
    if model is not None:
        fields = fit_struct(model, columns, where)
        make = model.make
        return lambda value: make({argument: convert(value[name]) for argument, name, convert, _ in fields})
    origin, arguments = _generic(wanted, 2)
    if origin not in _MAPPINGS or arguments[0] not in (str, *_ANYTHING):
        return None
    of_value = arguments[1]
    converts = [(each.name, fit(of_value, each, f"{where}[{each.name!r}]")) for each in columns]
    return lambda value: {name: convert(value[name]) for name, convert in converts}


def _fit_of_array(wanted: Any, element: SparkType, where: str) -> Convert | None:
    origin, arguments = _generic(wanted, 1)
    inner = Column("element", element)
    if origin in _LISTS:
        return list_maker(fit(arguments[0], inner, f"{where}[]"))
    if origin is tuple and (wanted is tuple or arguments[1:] == (Ellipsis,)):
        make = list_maker(fit(Any if wanted is tuple else arguments[0], inner, f"{where}[]"))
        return lambda value: tuple(make(value))
    return None


def _fit_of_map(wanted: Any, spark_type: MapType, where: str) -> Convert | None:
    origin, arguments = _generic(wanted, 2)
    if origin in _LISTS and typing.get_origin(arguments[0]) is tuple:
        is_pairs, arguments = True, typing.get_args(arguments[0])
    else:
        is_pairs = False
    if not (is_pairs or origin in _MAPPINGS) or len(arguments) != 2 or arguments[1] is Ellipsis:
        return None
    if not is_pairs and not _is_hashable(arguments[0], spark_type.key):
        return None
    of_key = fit(arguments[0], Column("key", spark_type.key, nullable=False), f"{where}[key]")
    of_value = fit(arguments[1], Column("value", spark_type.value), f"{where}[value]")

    def convert(value: Any) -> Any:
        found = [(of_key(key), of_value(each)) for key, each in pairs_of(value)]
        if is_pairs:
            return found
        entries = dict(found)
        if len(entries) != len(found):
            raise ValueError("the map has a key twice: list[tuple[...]] would hold it")
        return entries

    return convert


def _first_of(converts: Sequence[Convert]) -> Convert:
    """Return a conversion to the first of several types that can hold a value."""

    def convert(value: Any) -> Any:
        for each in converts[:-1]:
            try:
                return each(value)
            except MISMATCHES:
                continue
        return converts[-1](value)

    return convert


def _never_null(convert: Convert) -> Convert:
    def convert_value(value: Any) -> Any:
        if value is None:
            raise ValueError("it is null, which its annotation does not take: add `| None`")
        return convert(value)

    return convert_value


def _generic(wanted: Any, count: int) -> tuple[Any, tuple[Any, ...]]:
    """Return the class of a generic annotation and its arguments; those that it leaves out are Any."""
    return typing.get_origin(wanted) or wanted, typing.get_args(wanted) or (Any,) * count


def _is_hashable(annotation: Any, spark_type: SparkType) -> bool:
    """Whether a dict can have keys of this annotation."""
    if any(each in _ANYTHING for each in _alternatives(annotation)):
        return not isinstance(spark_type, StructType | ArrayType | MapType)
    return all(getattr(typing.get_origin(each) or each, "__hash__", None) for each in _alternatives(annotation))


def _misfit(annotation: Any, column: Column, where: str, also: str = "") -> ModelError:
    shown = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    null = " | None" if column.nullable else ""
    fix = " or ".join(each + null for each in fitting_names(column.type)) + " would fit"
    if isinstance(column.type, StructType):
        fix = f"A model with these fields, or {fix}"
    said = f"column {column.name!r} is {column.type.name}" + (f" {also}" if also else "")
    return ModelError(f"{said}, which {shown} cannot hold", where=where, fix=fix)
