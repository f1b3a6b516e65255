"""Default bounds by store, for readers that give no bound: a TOML file that the operator writes.

A table per store, and `["*"]` for every store. Each parameter counts by itself: the reader's, else the store's, else
that of `*`. A reader takes one back with `none`.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from understudy_shared.base.errors import SettingsError
from understudy_shared.reads.bound_parsing import (
    BOUNDS,
    LAG_PARAMETERS,
    OF_A_READER,
    SELECTION,
    VERSION_PARAMETERS,
    parse_bound,
)
from understudy_shared.reads.bounds import NO_BOUND, BadBoundError, Bound

log = logging.getLogger(__name__)

EVERY_STORE = "*"


class StoreBounds:
    """The defaults of each store, to be combined with the parameters of a request."""

    def __init__(self, by_store: Mapping[str, Mapping[str, object]] | None = None) -> None:
        self._by_store = dict(by_store or {})
        self._defaults: dict[str, Bound] = {}
        """Bounds of requests without parameters: one object per store, so that equal requests share a group of a hop.
        """

    def bound(self, store: str, params: Mapping[str, object]) -> Bound:
        """Return the bound of a reader of an existing store. Defaults about lag do not apply to a reader who names a
        version. Raises BadBoundError.
        """
        if params:
            defaults = self.of(store)
            if any(name in params for name in VERSION_PARAMETERS):
                defaults = {name: value for name, value in defaults.items() if name not in LAG_PARAMETERS}
            return parse_bound({**defaults, **{name: _taken_back(value) for name, value in params.items()}})
        known = self._defaults.get(store)
        if known is None:
            defaults = self.of(store)
            known = self._defaults[store] = parse_bound(defaults) if defaults else NO_BOUND
        return known

    def of(self, store: str) -> dict[str, object]:
        """Return the default parameters of a store."""
        return {**self._by_store.get(EVERY_STORE, {}), **self._by_store.get(store, {})}

    def warn_of_unknown(self, stores: Iterable[str]) -> None:
        """Log which tables match no existing store: a misspelt name protects no reader."""
        unknown = sorted(self._by_store.keys() - {EVERY_STORE} - set(stores))
        if unknown:
            log.warning(
                "store_bounds names %s, and there is no such store",
                ", ".join(unknown),
                extra={"action": "bounds-unused"},
            )


def read_store_bounds(path: Path | None) -> StoreBounds:
    """Read the bounds of a file; without a file there are no defaults. Raises SettingsError."""
    if path is None:
        return StoreBounds()
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SettingsError("there is no such file", where=str(path), fix="Check the path of --store-bounds") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"the bounds are not TOML ({error})", where=str(path)) from None
    can_be_default = [name for name in (*BOUNDS, *SELECTION) if name not in OF_A_READER]
    for store, table in tables.items():
        where = f"{path}: [{store}]"
        fix = f'A table per store, or ["*"], with {", ".join(can_be_default)}'
        if not isinstance(table, dict):
            raise SettingsError(f"{store!r} is not a table", where=where, fix=fix)
        for name in OF_A_READER:
            if name in table:
                raise SettingsError(f"{name} is a reader's own", where=where, fix=fix)
        try:
            parse_bound(table)
        except BadBoundError as error:
            raise SettingsError(error.what, where=where, fix=error.fix) from None
    return StoreBounds(tables)


def _taken_back(value: object) -> object:
    return None if value == "none" else value
