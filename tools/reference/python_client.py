"""The page of the Python client, made of its classes, signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import is_typeddict

from tools.reference.markdown import GENERATED, code, entries, fence, page, plain

import understudy
from understudy import Client, Result, WatchEvent
from understudy.client import driver, pages, results, sync
from understudy.client.core import changes, values, watches

_CLASSES: Mapping[str, Sequence[type]] = {
    "Client and stores": (Client, sync.Store, sync.Snapshot),
    "What calls return": (
        pages.Row, Result, pages.Window, pages.KeyVersion, pages.Count, pages.Page, sync.Pages, driver.Watch,
        WatchEvent, results.StoreInfo, results.Stores, results.RoutingCounts,
    ),
}  # fmt: skip
_TIMEOUT = "timeout: 'Duration | None' = None"
"""A parameter that every call has which asks a server."""

_QUALIFIED = re.compile(r"\b(?:understudy\w*|datetime|collections\.abc|typing|ssl|types)(?:\.[a-z_]\w*)*\.(?=[A-Za-z])")


def python_client_page() -> str:
    """Render the classes that `understudy` names, and those that their calls return."""
    return page(
        "# Python client: names",
        GENERATED.format(source="the signatures and docstrings of the package"),
        "[The Python client](../client.md) explains it with examples. `AsyncClient` has the calls of `Client`, to be "
        "awaited; its lists are asynchronous iterators. Calls that ask a server also take the keyword `timeout`, "
        "a `timedelta` or seconds.",
        *(part for title, classes in _CLASSES.items() for part in (f"## {title}", *_classes(classes))),
        "## Options of calls",
        *_options(),
        "## Errors",
        *_errors(),
    )


def _classes(classes: Sequence[type]) -> Iterator[str]:
    for each in classes:
        yield f"### {each.__name__}"
        yield from _paragraphs(each)
        constructor = vars(each).get("__init__")
        if each is Client and constructor is not None:
            yield fence(f"Client{_signature(constructor)}", "python")
            yield from _paragraphs(constructor)
        yield _attributes(each)
        for name, member in _public(each):
            if isinstance(member, types.FunctionType):
                yield f"#### {each.__name__}.{name}"
                alike = dict(_public(Client)).get(name)
                if each is not Client and isinstance(alike, types.FunctionType) and _said(alike) == _said(member):
                    yield f"As `Client.{name}`."
                else:
                    yield from _said(member)


def _said(function: types.FunctionType) -> list[str]:
    text = f"{function.__name__}{_signature(function)}"
    return [fence(text, "python") if "\n" in text else code(text), *_paragraphs(function)]


def _public(each: type) -> Iterator[tuple[str, object]]:
    """Yield the members that a program may use, those of base classes first."""
    bases = [base for base in reversed(each.__mro__) if base.__module__.partition(".")[0] == "understudy"]
    found = {name: member for base in bases for name, member in vars(base).items()}
    return ((name, member) for name, member in found.items() if not name.startswith("_"))


def _attributes(each: type) -> str:
    """Return properties and fields as a list. Those of a row are not said again of what has all of them."""
    of_row, properties = _properties(pages.Row), _properties(each)
    is_row = each is not pages.Row and properties.keys() >= of_row.keys()
    own = [(code(name), text) for name, text in properties.items() if not (is_row and of_row.get(name) == text)]
    kinds = inspect.get_annotations(each).items()
    fields = {name: _type_text(kind) for name, kind in kinds if not name.startswith("_")}
    return page(_declared(fields), entries(own), "And what a [row](#row) has." if is_row else "")


def _properties(each: type) -> Mapping[str, str]:
    found = ((name, member) for name, member in _public(each) if isinstance(member, property))
    return {name: plain(inspect.getdoc(member) or "") for name, member in found}


def _declared(fields: Mapping[str, str]) -> str:
    """Return names with their types as a class would declare them."""
    lines = (f"{name}: {kind}".replace("'", '"') for name, kind in fields.items())
    return fence("\n".join(lines), "python") if fields else ""


def _signature(function: object) -> str:
    """Return a signature as a program would write it: a line for each argument when it is long."""
    assert callable(function)
    found = inspect.signature(function)
    left_out = [name for name, each in found.parameters.items() if name == "self" or str(each) == _TIMEOUT]
    shown = found.replace(parameters=[each for name, each in found.parameters.items() if name not in left_out])
    text = _QUALIFIED.sub("", str(shown).replace("'", ""))
    if len(text) < 100:
        return text
    arguments = [_QUALIFIED.sub("", str(each).replace("'", "")) for each in shown.parameters.values()]
    keyword_only = [each.kind is inspect.Parameter.KEYWORD_ONLY for each in shown.parameters.values()]
    has_variable = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in shown.parameters.values())
    if True in keyword_only and not has_variable:
        arguments.insert(keyword_only.index(True), "*")
    returned = _QUALIFIED.sub("", str(shown.return_annotation).replace("'", ""))
    return "(\n" + "".join(f"    {each},\n" for each in arguments) + f") -> {returned}"


def _paragraphs(each: object) -> Iterator[str]:
    for paragraph in (inspect.getdoc(each) or "").split("\n\n"):
        is_example = paragraph.startswith("    ")
        yield fence(textwrap.dedent(paragraph), "python") if is_example else plain(paragraph)


def _options() -> Iterator[str]:
    """Yield the keyword arguments that calls take by `**`, of each typed dictionary."""
    for module in (values, changes, watches):
        for name, each in vars(module).items():
            if is_typeddict(each) and each.__module__ == module.__name__:
                yield f"### {name}"
                yield from _paragraphs(each)
                parents = _parents(each)
                inherited = {key for parent in parents for key in parent.__annotations__}
                kinds = each.__annotations__.items()
                yield _declared({key: _type_text(kind) for key, kind in kinds if key not in inherited})
                if parents:
                    named = (f"[{base.__name__}](#{base.__name__.lower()})" for base in parents)
                    yield f"And those of {', '.join(named)}."


def _parents(each: type) -> list[type]:
    """Return the typed dictionaries that one extends. It is read in its source: Python 3.11 does not keep them."""
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
    assert isinstance(defined, ast.ClassDef)
    module = vars(inspect.getmodule(each))
    bases = [module[base.id] for base in defined.bases if isinstance(base, ast.Name)]
    return [base for base in bases if is_typeddict(base)]


def _type_text(kind: object) -> str:
    """Return an annotation as it is written."""
    return _QUALIFIED.sub("", str(getattr(kind, "__forward_arg__", kind)))


def _errors() -> Iterator[str]:
    """Yield the errors, grouped by base class."""
    classes = [getattr(understudy, name) for name in understudy.__all__ if name.endswith("Error")]
    for base in dict.fromkeys(each.__bases__[0] for each in sorted(classes, key=lambda each: len(each.__mro__))):
        yield f"Subclasses of `{base.__name__}`:"
        of_base = sorted((each for each in classes if each.__bases__[0] is base), key=lambda each: each.__name__)
        yield entries((code(each.__name__), plain(_summary(each))) for each in of_base)


def _summary(each: type) -> str:
    return (inspect.getdoc(each) or "").split("\n\n")[0]
