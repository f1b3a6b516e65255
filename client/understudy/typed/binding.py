"""The columns of a store bound to Python types: a mismatch is an error at once, not at the first row (pure)."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, Final

from understudy.typed.columns import StoreEntry, TypedColumn, read_entry
from understudy.typed.key_writer import KeyWriter
from understudy.typed.models import Model, model_of
from understudy.typed.python_types import (
    MISMATCHES,
    Convert,
    ModelError,
    UnfitValueError,
    fit_scalar,
    fitting_names,
    list_maker,
    or_null,
    pairs_of,
    to_plain,
)
from understudy_shared.base.texts import clipped, did_you_mean
from understudy_shared.base.words import StoreKind
from understudy_shared.spark.types import ArrayType, MapType, SparkType, StructType, VoidType, unique_names

Read = Callable[[Mapping[str, Any]], Any]

_KEEPS_NO_VALUE: Final = frozenset((StoreKind.SET, StoreKind.TIMERS))
_ABSENT: Final = object()

_ANYTHING: Final = (Any, object)
_LISTS: Final = (list, Sequence, MutableSequence, Iterable)
_MAPPINGS: Final = (dict, Mapping, MutableMapping)


def fit(annotation: Any, column: TypedColumn, where: str) -> Convert:
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


def _fit_each(wanted: Sequence[Any], column: TypedColumn, where: str) -> tuple[list[Convert], list[ModelError]]:
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


def fit_struct(model: Model, columns: Sequence[TypedColumn], where: str) -> list[tuple[str, str, Convert, bool]]:
    """Return for each field of a model its argument, its column, the conversion, and whether it has no default."""
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
    """Return the members of a union, in their order; for all else the annotation itself."""
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


def _fit_one(wanted: Any, column: TypedColumn, where: str) -> Convert | None:
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
    columns = [TypedColumn(name, each.type) for name, each in zip(names, struct.fields, strict=True)]
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
    inner = TypedColumn("element", element)
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
    of_key = fit(arguments[0], TypedColumn("key", spark_type.key, nullable=False), f"{where}[key]")
    of_value = fit(arguments[1], TypedColumn("value", spark_type.value), f"{where}[value]")

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


def _misfit(annotation: Any, column: TypedColumn, where: str, also: str = "") -> ModelError:
    shown = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    null = " | None" if column.nullable else ""
    fix = " or ".join(each + null for each in fitting_names(column.type)) + " would fit"
    if isinstance(column.type, StructType):
        fix = f"A model with these fields, or {fix}"
    said = f"column {column.name!r} is {column.type.name}" + (f" {also}" if also else "")
    return ModelError(f"{said}, which {shown} cannot hold", where=where, fix=fix)


class ModelBinding:
    """The conversions of one store, both ways. Columns that the store did not have when it was bound are left out."""

    def __init__(self, entry: StoreEntry, *, key: Any, value: Any, result: Any) -> None:
        whole_key = (*entry.key, *entry.user_key)
        self.key: Read = _key_reader(entry, key)
        """Return a printed key: its model, or a dict by column."""
        self.user_key: Read = _plain(entry.user_key)
        """Return the key of an entry of a map, a dict by column."""
        self.value: Read = _value_reader(entry, value)
        """Return a printed value, of an answer or of an element of its list: its model, or a dict by column."""
        self.result: Read = _plain(entry.result) if result is None else _modelled(result, entry.result, "result", {})
        """Return a printed result in the same way."""
        self._writers = [KeyWriter(entry.key)]
        if entry.user_key:
            self._writers.append(KeyWriter(whole_key))

    def key_columns(self, key: object) -> dict[str, Any]:
        """Return a key as JSON by column, as the API takes it in exact form. Raises BadKeyError for anything else.

        It may be a model, a dict by column, a tuple in the order of the columns, or the value of the only column.
        """
        first, *others = self._writers
        return next((each for each in others if each.takes(key)), first).write(key)


def bind(
    schema: Mapping[str, Any], *, key: type | None = None, value: type | None = None, result: type | None = None
) -> ModelBinding:
    """Bind a store, by its entry in `GET /v1/stores`, to the types of its key, its value and its result.

    Each is a dataclass, a pydantic model or a TypedDict with fields named as columns (or less of the value's and the
    result's); the type of the only column; or None, for a dict of plain Python types. Raises ModelError for a type that
    does not fit.
    """
    return ModelBinding(read_entry(schema), key=key, value=value, result=result)


def _key_reader(entry: StoreEntry, wanted: Any) -> Read:
    whole_key = (*entry.key, *entry.user_key)
    if wanted is None:
        return _plain(whole_key)
    model = model_of(wanted)
    if model is None:
        return _modelled(wanted, entry.key, "key", {})
    named = {each.column for each in model.members}
    columns = whole_key if named & {each.name for each in entry.user_key} else entry.key
    read = _modelled(wanted, columns, "key", {})
    missing = [each for each in columns if each.name not in named]
    if missing:
        said = ", ".join(f"{each.name} ({each.type.name})" for each in missing)
        raise ModelError(
            f"a key of this store has more columns: {said}",
            where=model.name,
            fix="Give the model a field for each column of the key",
        )
    return read


def _value_reader(entry: StoreEntry, wanted: Any) -> Read:
    if wanted is None:
        return _plain(entry.value)
    if entry.kind in _KEEPS_NO_VALUE:
        raise ModelError(
            f"store {entry.store} keeps no values, it is of kind {entry.kind}", where="value=", fix="Leave value= out"
        )
    return _modelled(wanted, entry.value, "value", {"result": entry.result})


def _plain(columns: Sequence[TypedColumn]) -> Read:
    """Return the reader of columns into a dict of plain types. It leaves out what an answer does not have."""
    converts = {each.name: or_null(to_plain(each.type)) for each in columns}

    def read(printed: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {name: converts[name](value) for name, value in printed.items() if name in converts}
        except MISMATCHES:
            raise _unfit(printed, [(each, each, convert) for each, convert in converts.items()]) from None

    return read


def _modelled(
    wanted: Any, columns: Sequence[TypedColumn], part: str, elsewhere: Mapping[str, Sequence[TypedColumn]]
) -> Read:
    """Return the reader of columns into a model, or into the type of the only column. `elsewhere` are other columns of
    the store, which the model may have been made for.
    """
    model = model_of(wanted)
    if model is None:
        return _single(wanted, columns, part)
    try:
        fields = fit_struct(model, columns, model.name)
    except ModelError as error:
        raise _with_hint(error, model, elsewhere) from None
    return _model_reader(model, fields)


def _model_reader(model: Model, fields: Sequence[tuple[str, str, Convert, bool]]) -> Read:
    make, name = model.make, model.name
    converts = [(argument, column, convert) for argument, column, convert, _ in fields]
    required = [column for _, column, _, is_required in fields if is_required]

    def read(printed: Mapping[str, Any]) -> Any:
        try:
            given = {arg: convert(printed[column]) for arg, column, convert in converts if column in printed}
            if len(given) != len(converts):
                _refuse_absent(required, printed, name)
            return make(given)
        except MISMATCHES as error:
            raise _unfit(printed, converts, f"{name}: {error}") from error

    return read


def _single(wanted: Any, columns: Sequence[TypedColumn], part: str) -> Read:
    if len(columns) != 1:
        names = ", ".join(f"{each.name} {each.type.name}" for each in columns) or "none"
        raise ModelError(
            f"{getattr(wanted, '__name__', wanted)} is one value, and the {part} has {len(columns)} columns ({names})",
            where=f"{part}=",
            fix="Give a dataclass, a pydantic model or a TypedDict with fields named as the columns",
        )
    name = columns[0].name
    convert = fit(wanted, columns[0], f"{part}=")

    def read(printed: Mapping[str, Any]) -> Any:
        try:
            return convert(printed[name])
        except MISMATCHES as error:
            raise _unfit(printed, [(name, name, convert)], str(error)) from None

    return read


def _refuse_absent(required: Sequence[str], printed: Mapping[str, Any], model: str) -> None:
    absent = [column for column in required if column not in printed]
    if absent:
        raise UnfitValueError(
            f"the answer does not have {', '.join(absent)}",
            where=model,
            fix="Name it in `fields`, or give the field a default; where the store changed, bind it again",
        )


def _unfit(
    printed: Mapping[str, Any], converts: Sequence[tuple[str, str, Convert]], otherwise: str = "it does not fit"
) -> UnfitValueError:
    """Make the error for a row: with the first column that does not fit, else with what is wrong with the whole row."""
    if not isinstance(printed, Mapping):
        return UnfitValueError(f"{clipped(printed)} is not an object of columns")
    for _, column, convert in converts:
        value = printed.get(column, _ABSENT)
        if value is _ABSENT:
            continue
        try:
            convert(value)
        except MISMATCHES as error:
            return UnfitValueError(
                f"{clipped(value)} does not fit: {error}",
                where=f"column {column}",
                fix="Annotate the field with a type that holds it; where the store changed, bind it again",
            )
    return UnfitValueError(otherwise)


def _with_hint(error: ModelError, model: Model, elsewhere: Mapping[str, Sequence[TypedColumn]]) -> ModelError:
    """Add that the model was made for other columns of the store, if all of its fields are there."""
    for part, columns in elsewhere.items():
        if {each.column for each in model.members} <= {each.name for each in columns}:
            hint = f"It has the columns of the {part}: give it as {part}={model.name}"
            return ModelError(error.what, where=error.where, fix=f"{hint}. {error.fix}")
    return error
