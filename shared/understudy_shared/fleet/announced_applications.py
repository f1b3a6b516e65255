"""The announced queries, and the applications that a process serves because of them (pure: time is passed in).

The file of the operator wins over announcements, and a served application over one that is announced later.

The pipeline that announces a query chooses its location, which must lie below a root. So locations are compared in one
normal form, and the opened location is built anew: the root as the operator wrote it, then plain names. Symbolic links
are checked where files are read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from pydantic import Field

from understudy_shared.base.errors import SettingsError
from understudy_shared.base.masking import masked_location
from understudy_shared.base.texts import clipped
from understudy_shared.bus.messages import Message, Name
from understudy_shared.fleet.applications_file import (
    FLEET,
    LOCAL_SCHEMES,
    ApplicationSpec,
    normal_location,
    require_id,
    split_location,
)

MAX_DECODINGS = 8
"""Limit on how often an escaped name is decoded to find other readings of it."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}")
_HOST = re.compile("//[^/]")
_FIX = "Write absolute paths or URLs, separated by commas, such as s3://bucket/checkpoints"


class CheckpointRoot(NamedTuple):
    """One root. `beginning` precedes the path when a location is opened; `place` and `path` are compared."""

    beginning: str
    place: str
    path: str
    """Its path without a slash at the end; empty for a whole store."""

    @property
    def is_local(self) -> bool:
        return not self.place

    @property
    def location(self) -> str:
        return f"{self.beginning}{self.path or '/'}"


class Below(NamedTuple):
    """A location below a root, in the form in which it is opened."""

    root: CheckpointRoot
    location: str


def parse_roots(text: str) -> tuple[CheckpointRoot, ...]:
    """Parse roots that are separated by commas; an empty text has no root. Raises SettingsError."""
    return tuple(dict.fromkeys([_root(part.strip()) for part in text.split(",")])) if text else ()


def below(location: str, roots: Iterable[CheckpointRoot]) -> Below | str:
    """Return the location to open for an announced one, or the reason why it is not opened."""
    if (why := _ambiguity(location)) is not None:
        return why
    place, path = split_location(location)
    for root in roots:
        if place == root.place and path.startswith(f"{root.path}/") and path != "/":
            return Below(root, root.beginning + path)
    return "it lies below no --checkpoint-root"


def _root(text: str) -> CheckpointRoot:
    is_bare = text.partition(":")[0].lower() not in LOCAL_SCHEMES and "://" not in text
    given = str(Path(text).expanduser().absolute()) if is_bare and text else text
    if (why := _ambiguity(given)) is not None:
        raise SettingsError(f"a root cannot be used: {why}", where=f"checkpoint_root {masked_location(text)}", fix=_FIX)
    place, path = split_location(given)
    scheme, _, rest = given.partition("://")
    beginning = f"{scheme.lower()}://{rest.partition('/')[0]}" if place else ""
    return CheckpointRoot(beginning, place, path.rstrip("/"))


def _ambiguity(location: str) -> str | None:
    """Say why a location may be read as more than one place; return `None` if it is unambiguous."""
    scheme, separator, rest = location.partition("://")
    if not location.isprintable():
        return "it has characters that cannot be printed"
    if not separator or scheme.lower() in LOCAL_SCHEMES:
        return _ambiguity_of_path(location)
    if _SCHEME.fullmatch(scheme) is None:
        return "it is neither a path nor a URL"
    if "?" in rest or "#" in rest:
        return "it has a query or a fragment"
    return "it has an escaped slash, or dots" if any(map(_is_hidden, rest.split("/"))) else None


def _ambiguity_of_path(location: str) -> str | None:
    scheme, _, rest = location.partition(":")
    has_scheme = scheme.lower() in LOCAL_SCHEMES
    if has_scheme and _HOST.match(rest) is not None:
        return "it names a host"
    path = rest if has_scheme else location
    return None if path.startswith("/") else "it is not an absolute path"


def _is_hidden(name: str) -> bool:
    """Whether a name, decoded once or more often, becomes several names or leads upward."""
    for _ in range(MAX_DECODINGS):
        decoded = unquote(name)
        if decoded == name:
            return False
        if "/" in decoded or "\\" in decoded or decoded in {".", ".."}:
            return True
        name = decoded
    return True


MAX_ANNOUNCED = 1000
"""Limit on the announced applications of a process."""

MAX_KNOWN = 10_000
"""Limit on the announcements that are remembered. Applications above MAX_ANNOUNCED wait for a place."""

STEADY_MS = 180_000
"""Time for which an announcement counts. Queries repeat theirs each minute."""


class AnnouncedQuery(NamedTuple):
    """A query as it was announced."""

    application_id: str
    location: str
    is_idle: bool = False
    """Whether it made no commit and no announcement for a long time."""
    is_quiet: bool = False
    """Whether it made no announcement lately."""
    rival: str | None = None
    """The location of another query that was lately announced with the same id."""


class AnnouncedSpec(ApplicationSpec):
    """One application that announced itself. Its settings are those of the process."""

    root: str | None = None
    """The folder that no symbolic link of its checkpoint may leave; None in a store without such links."""

    def overrides(self) -> dict[str, Any]:
        return {name: value for name, value in super().overrides().items() if name != "root"}


class Wanted(NamedTuple):
    """The applications that a process is to serve."""

    listed: tuple[ApplicationSpec, ...]
    announced: tuple[AnnouncedSpec, ...]
    idle: frozenset[str]
    problems: tuple[str, ...]
    left_out: Mapping[str, str]
    """The reason why an announced application is not served, by its id."""
    too_many: int
    """The number of announced applications above the limit."""

    @property
    def specs(self) -> tuple[ApplicationSpec, ...]:
        """All of them, each with an id and a checkpoint of its own."""
        return (*self.listed, *self.announced)


def merged(
    listed: Sequence[ApplicationSpec],
    queries: Iterable[AnnouncedQuery],
    roots: Sequence[CheckpointRoot],
    served: Collection[str] = (),
) -> Wanted:
    """Choose the queries to serve, in addition to the `listed` applications. `served` were chosen before."""
    own = {each.id: normal_location(each.checkpoint) for each in listed}
    places = {place: application_id for application_id, place in own.items()}
    announced: dict[str, AnnouncedSpec] = {}
    idle, problems, left_out, too_many = set[str](), list[str](), dict[str, str](), 0
    for query in sorted(queries, key=lambda each: _rank(each, served)):
        name, found = query.application_id, _checked(query, roots)
        if isinstance(found, str):
            left_out[name] = found
            continue
        place = normal_location(found.location)
        if own.get(name, place) != place:
            problems.append(f"{clipped(name)} is listed with another checkpoint than {_shown(found.location)}")
        elif name not in own and place in places:
            problems.append(f"{clipped(places[place])}, which is served, and {clipped(name)} have one checkpoint")
        elif name not in own and len(announced) >= MAX_ANNOUNCED:
            too_many += 1
        elif name not in own:
            root = found.root.location if found.root.is_local else None
            announced[name], places[place] = AnnouncedSpec(id=name, checkpoint=found.location, root=root), name
            if query.is_idle:
                idle.add(name)
            if query.rival is not None:
                both = f"{_shown(found.location)}, which is served, and from {_shown(query.rival)}"
                problems.append(f"{clipped(name)} is announced from {both}")
    specs = [announced[name] for name in sorted(announced)]
    return Wanted(tuple(listed), tuple(specs), frozenset(idle), tuple(problems), left_out, too_many)


def _rank(query: AnnouncedQuery, served: Collection[str]) -> tuple[bool, bool, bool, str]:
    return query.is_idle, query.is_quiet, query.application_id not in served, query.application_id


def _checked(query: AnnouncedQuery, roots: Sequence[CheckpointRoot]) -> Below | str:
    try:
        require_id(query.application_id)
    except SettingsError as error:
        return error.what
    return below(query.location, roots)


def _shown(location: str) -> str:
    return clipped(masked_location(location))


@dataclass(slots=True)
class _KnownQuery:
    location: str
    announced_ms: float
    version: int | None = None
    committed_ms: float = float("-inf")
    rival: tuple[str, float] | None = None


class AnnouncedLocations(Message):
    """The location of each announced query, by application id: kept on disk for a start without the bus."""

    locations: dict[Name, str] = Field(max_length=MAX_KNOWN)


class AnnouncedQueries:
    """The known announced queries, by application id."""

    def __init__(self, *, forget_after_ms: int) -> None:
        self.revision = 0
        """A number that grows with each change, except for changes of ages."""
        self._forget_after_ms = forget_after_ms
        self._known: dict[str, _KnownQuery] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, application_id: str) -> bool:
        return application_id in self._known

    def hear(self, application_id: str, location: str, *, now_ms: float) -> None:
        """Record an announcement. While two locations are announced with one id, the first one wins."""
        known = self._known.get(application_id)
        if known is not None and known.location == location:
            known.announced_ms = now_ms
            return
        self.revision += 1
        if known is not None and now_ms - known.announced_ms <= STEADY_MS:
            known.rival = (location, now_ms)
        elif known is not None or len(self._known) < MAX_KNOWN:
            self._known[application_id] = _KnownQuery(location, now_ms)

    def read(self, application_id: str, location: str, *, now_ms: float) -> None:
        """Note the announcement that the bus stores. Its age is unknown, so it counts only if it is new here."""
        known = self._known.get(application_id)
        if known is None or location not in (known.location, known.rival and known.rival[0]):
            self.hear(application_id, location, now_ms=now_ms)

    def commit(self, application_id: str, version: int | None, *, now_ms: float) -> None:
        """Record the newest version of an application. If it differs from the last one, the query has committed."""
        known = self._known.get(application_id)
        if known is not None and version is not None and version != known.version:
            known.version, known.committed_ms = version, now_ms

    def hear_all(self, *, now_ms: float) -> None:
        """Treat all queries as announced now, because announcements may have been lost."""
        for known in self._known.values():
            known.announced_ms = now_ms

    def forget(self, application_ids: Iterable[str]) -> None:
        for application_id in application_ids:
            self.revision += self._known.pop(application_id, None) is not None

    def locations(self) -> AnnouncedLocations:
        found = {application_id: known.location for application_id, known in self._known.items()}
        return AnnouncedLocations(application_id=FLEET, locations=found)

    def queries(self, *, now_ms: float) -> list[AnnouncedQuery]:
        return [self._query(application_id, known, now_ms) for application_id, known in self._known.items()]

    def _query(self, application_id: str, known: _KnownQuery, now_ms: float) -> AnnouncedQuery:
        active_ms = max(known.announced_ms, known.committed_ms)
        is_rival_new = known.rival is not None and now_ms - known.rival[1] <= STEADY_MS
        return AnnouncedQuery(
            application_id,
            known.location,
            is_idle=now_ms - active_ms > self._forget_after_ms,
            is_quiet=now_ms - known.announced_ms > STEADY_MS,
            rival=known.rival[0] if known.rival is not None and is_rival_new else None,
        )
