"""The parameters of a read's bound: their names, the conversion to a bound and back, and defaults for each store.

`BOUNDS` and `SELECTION` are the only lists of their names. The defaults of stores, the OpenAPI document, and the flags
that the command line shows in problems are made from these lists.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from understudy_shared.base.errors import SettingsError, UnderstudyError
from understudy_shared.base.texts import EXAMPLES_OF_AGO, clipped, parse_ago
from understudy_shared.reads.bounds import (
    EVERYTHING,
    MAX_LIMIT,
    MAX_PAGE_ELEMENTS,
    MAX_WAIT_MS,
    NO_BOUND,
    WAIT_WITH_POSITION_MS,
    BadBoundError,
    Bound,
    Selection,
    UnknownLag,
)
from understudy_shared.reads.tokens import (
    BadPositionError,
    Position,
    SnapshotLease,
    decode_cursor,
    decode_position,
    decode_snapshot,
)
from understudy_shared.spark.temporal import parse_timestamp, utc_text

MAX_MOMENT_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""

VERSION_PARAMETERS = ("version", "snapshot", "at")
"""The parameters that name the one version to read."""

LAG_PARAMETERS = ("max_lag", "max_staleness_ms", "unknown_lag")
"""The parameters that limit the age of an answer. They do not apply if a version is named."""

BOUNDS = (
    "max_lag",
    "max_staleness_ms",
    "min_position",
    *VERSION_PARAMETERS,
    "require_active",
    "unknown_lag",
    "wait_ms",
)
"""Every bound, in the order in which documents show them."""

SELECTION = ("limit", "cursor", "include_expired")
"""The parameters that select a part of a key's elements."""

OF_A_READER = ("min_position", "cursor", *VERSION_PARAMETERS)
"""Parameters whose values come from earlier answers. A store has no defaults for them."""


def parse_bound(parameters: Mapping[str, object]) -> Bound:
    """Parse the bound in query parameters (texts) or a JSON object (numbers, booleans).

    Raises BadBoundError naming the parameter, what it was and what is accepted.
    """
    if not parameters:
        return NO_BOUND
    known = {*BOUNDS, *SELECTION}
    unknown = sorted(set(parameters) - known)
    if unknown:
        raise BadBoundError(
            f"unknown bound {clipped(unknown[0])}", where="bounds", fix=f"Known are: {', '.join(sorted(known))}"
        )
    _require_one_version(parameters)
    token, (snapshot, lease) = _token(parameters, "min_position"), _snapshot(parameters)
    position = None if token is None else decode_position(token)
    version, at_us = parse_whole(parameters, "version", unit="batches"), parse_moment("at", parameters.get("at"))
    selection = _selection(parameters)
    bound = Bound(
        max_lag=parse_whole(parameters, "max_lag", unit="versions"),
        max_staleness_ms=parse_whole(parameters, "max_staleness_ms", unit="milliseconds"),
        min_position=position,
        require_active=parse_flag(parameters, "require_active"),
        unknown_lag=_unknown_lag(parameters.get("unknown_lag")),
        wait_ms=_wait_ms(parameters, has_target=any(each is not None for each in (position, snapshot, version, at_us))),
        selection=selection,
    )
    if version is None and snapshot is None and at_us is None:
        return bound
    if selection.cursor is not None:
        _require_same_version(selection.cursor.version, snapshot.version if snapshot is not None else version)
        at_us = None  # the cursor has the version of the earlier pages
    return replace(bound, version=version, snapshot=snapshot, at_us=at_us, lease=lease)


def bound_fields(bound: Bound) -> dict[str, object]:
    """Return a bound as the JSON object that `parse_bound` reads, for a call to another service: without its selection
    and its wait. Unset fields are left out.
    """
    fields: dict[str, object] = {
        "max_lag": bound.max_lag,
        "max_staleness_ms": bound.max_staleness_ms,
        "min_position": None if bound.min_position is None else bound.min_position.encode(),
        "require_active": bound.require_active or None,
        "unknown_lag": bound.unknown_lag if isinstance(bound.unknown_lag, UnknownLag) else None,
        "version": bound.version,
        "snapshot": None if bound.snapshot is None else bound.snapshot.encode(),
        "at": utc_text(bound.at_us),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _require_one_version(parameters: Mapping[str, object]) -> None:
    """Refuse parameters if one names a version and another contradicts it."""
    named = [name for name in VERSION_PARAMETERS if parameters.get(name) is not None]
    others = [name for name in (*LAG_PARAMETERS, "min_position") if parameters.get(name) is not None]
    if len(named) > 1 or (named and others):
        raise BadBoundError(
            f"{named[0]} names the version to read, and {(named[1:] or others)[0]} asks for another",
            where=(named[1:] or others)[0],
            fix="Send one of version, snapshot and at, without min_position and bounds of lag",
        )


def _require_same_version(of_cursor: int, named: int | None) -> None:
    if named not in {None, of_cursor}:
        raise BadBoundError(
            f"the cursor is of version {of_cursor}, and version {named} is asked for",
            where="cursor",
            fix="Go on with the version of the first page, or begin again without the cursor",
        )


def _snapshot(parameters: Mapping[str, object]) -> tuple[Position | None, SnapshotLease | None]:
    token = _token(parameters, "snapshot")
    if token is None:
        return None, None
    try:
        return decode_snapshot(token)
    except BadPositionError as error:
        raise BadPositionError(error.what, where="snapshot", fix=error.fix) from None


def _token(parameters: Mapping[str, object], name: str) -> str | None:
    token = parameters.get(name)
    if token is None or isinstance(token, str):
        return token
    raise BadBoundError(f"{name} must be a text", where=name, fix="Send the `position` of an answer")


def parse_moment(name: str, value: object) -> int | None:
    """Parse a moment to microseconds: ISO 8601 with an offset, or whole milliseconds since the epoch; a negative number
    is relative to now. Raises BadBoundError.
    """
    if value is None:
        return None
    ago_us = parse_ago(value) if isinstance(value, str) else None
    if ago_us is not None:
        return min(-1, -ago_us)
    try:
        if isinstance(value, str) and not value.isdigit():
            return max(0, parse_timestamp(value))
        milliseconds = parse_whole({name: value}, name, unit="milliseconds")
    except (UnderstudyError, ValueError):
        milliseconds = None
    if milliseconds is None or milliseconds > MAX_MOMENT_MS:
        raise BadBoundError(
            f"{name}={clipped(value)} is not a moment",
            where=name,
            fix=f"Send for example {name}=2026-11-25T12:00:00Z (the plus of an offset as %2B), milliseconds since 1970,"
            f" or a time ago: {EXAMPLES_OF_AGO}",
        )
    return milliseconds * 1000


def _selection(parameters: Mapping[str, object]) -> Selection:
    limit, cursor, include_expired = map(parameters.get, SELECTION)
    if limit is cursor is include_expired is None:
        return EVERYTHING
    return Selection(
        MAX_PAGE_ELEMENTS if limit is None else _limit(parameters),
        None if cursor is None else decode_cursor(cursor),
        include_expired is None or parse_flag(parameters, "include_expired"),
    )


def _limit(parameters: Mapping[str, object]) -> int:
    try:
        limit = parse_whole(parameters, "limit", unit="elements")
    except BadBoundError:
        limit = None
    if limit is not None and 1 <= limit <= MAX_PAGE_ELEMENTS:
        return limit
    raise BadBoundError(
        f"limit={clipped(parameters['limit'])} is not a whole number from 1 to {MAX_PAGE_ELEMENTS}",
        where="limit",
        fix="Send a smaller limit and follow next_cursor, or leave it out",
    )


def parse_whole(parameters: Mapping[str, object], name: str, *, unit: str) -> int | None:
    """Parse a parameter that is a whole number, None when it is not given. Raises BadBoundError."""
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value <= MAX_LIMIT
        and value == int(value)
    ):
        return int(value)  # some JSON writers write every number as 5.0
    raise BadBoundError(
        f"{name}={clipped(value)} is not a whole number of {unit}, 0 or more, of at most 18 digits",
        where=name,
        fix=f"Send for example {name}=5",
    )


def parse_flag(parameters: Mapping[str, object], name: str) -> bool:
    """Parse a boolean parameter, false when it is not given. Raises BadBoundError."""
    value = parameters.get(name)
    text = value.lower() if isinstance(value, str) else value  # Python and Spark write True and TRUE
    if text is True or text in ("true", "1"):
        return True
    if text is None or text is False or text in ("false", "0"):
        return False
    raise BadBoundError(f"{name}={clipped(value)} is not a boolean", where=name, fix="Send true or false")


def _unknown_lag(value: object) -> UnknownLag | None:
    if value is None:
        return None
    if isinstance(value, str) and value in set(UnknownLag):
        return UnknownLag(value)
    raise BadBoundError(
        f"unknown_lag={clipped(value)} is not a choice", where="unknown_lag", fix="Send serve or refuse"
    )


def _wait_ms(parameters: Mapping[str, object], *, has_target: bool) -> int:
    wait_ms = parse_whole(parameters, "wait_ms", unit="milliseconds")
    if wait_ms is None:
        return WAIT_WITH_POSITION_MS if has_target else 0
    if wait_ms > MAX_WAIT_MS:
        raise BadBoundError(
            f"wait_ms={wait_ms} is above {MAX_WAIT_MS}", where="wait_ms", fix=f"Wait at most {MAX_WAIT_MS} ms"
        )
    return wait_ms


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
        """Return the bound for a read of an existing store. Defaults about lag do not apply to a read that names a
        version, as a cursor does. Raises BadBoundError.
        """
        if params:
            defaults = self.of(store)
            if any(name in params for name in (*VERSION_PARAMETERS, "cursor")):
                defaults = {name: value for name, value in defaults.items() if name not in LAG_PARAMETERS}
            given = {name: None if value == "none" else value for name, value in params.items()}
            return parse_bound({**defaults, **given})
        known = self._defaults.get(store)
        if known is None:
            known = self._defaults[store] = parse_bound(self.of(store))
        return known

    def of(self, store: str) -> dict[str, object]:
        return {**self._by_store.get(EVERY_STORE, {}), **self._by_store.get(store, {})}

    def warn_of_unknown(self, stores: Iterable[str]) -> None:
        """Log which tables match no existing store: a misspelt name has no effect."""
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
    import tomllib  # noqa: PLC0415  # only services read such a file, and commands import this module

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
