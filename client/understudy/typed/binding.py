"""The columns of a store bound to Python types: what does not fit is said at once, not at the first row (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from understudy.typed.columns import Column, StoreEntry, read_entry
from understudy.typed.errors import ModelError, UnfitValueError
from understudy.typed.fitting import fit, fit_struct
from understudy.typed.key_writer import KeyWriter
from understudy.typed.models import Model, model_of
from understudy.typed.plain import MISMATCHES, Convert, or_null, to_plain
from understudy_shared.base.printable import clipped
from understudy_shared.base.words import StoreKind

Read = Callable[[Mapping[str, Any]], Any]

_KEEPS_NO_VALUE: Final = frozenset((StoreKind.SET, StoreKind.TIMERS))
_ABSENT: Final = object()


class Binding:
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
        """Return a key as JSON by column, as the API takes it in exact form. Raises BadKeyError for what is no key.

        It may be a model, a dict by column, a tuple in the order of the columns, or the value of the only column.
        """
        first, *others = self._writers
        return next((each for each in others if each.takes(key)), first).write(key)


def bind(
    schema: Mapping[str, Any], *, key: type | None = None, value: type | None = None, result: type | None = None
) -> Binding:
    """Bind a store, by its entry in `GET /v1/stores`, to the types of its key, its value and its result.

    Each is a dataclass, a pydantic model or a TypedDict with fields named as columns (or less of the value's and the
    result's); the type of the only column; or None, for a dict of plain Python types. Raises ModelError for a type that
    does not fit.
    """
    return Binding(read_entry(schema), key=key, value=value, result=result)


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


def _plain(columns: Sequence[Column]) -> Read:
    """Return the reader of columns into a dict of plain types. It leaves out what an answer does not have."""
    converts = {each.name: or_null(to_plain(each.type)) for each in columns}

    def read(printed: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {name: converts[name](value) for name, value in printed.items() if name in converts}
        except MISMATCHES:
            raise _unfit(printed, [(each, each, convert) for each, convert in converts.items()]) from None

    return read


def _modelled(wanted: Any, columns: Sequence[Column], part: str, elsewhere: Mapping[str, Sequence[Column]]) -> Read:
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


def _single(wanted: Any, columns: Sequence[Column], part: str) -> Read:
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
    """Make the error for a row: with the first column that does not fit, else with what is wrong of the whole."""
    if not isinstance(printed, Mapping):
        return UnfitValueError(f"{clipped(printed)} is no object by column")
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


def _with_hint(error: ModelError, model: Model, elsewhere: Mapping[str, Sequence[Column]]) -> ModelError:
    """Add that the model was made for other columns of the store, where all of its fields are there."""
    for part, columns in elsewhere.items():
        if {each.column for each in model.members} <= {each.name for each in columns}:
            hint = f"It has the columns of the {part}: give it as {part}={model.name}"
            return ModelError(error.what, where=error.where, fix=f"{hint}. {error.fix}")
    return error
