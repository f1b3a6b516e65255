"""Readers: the bounds for all their reads, the session, and the models of stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from understudy.client.core.call import call, require
from understudy.client.core.exchange import Request, Steps
from understudy.client.core.state import ClientState
from understudy.client.core.values import (
    are_plain,
    are_segments,
    bound_members,
    is_printed,
    json_of,
    store_path,
    wait_s,
)
from understudy.client.errors import LineageChangedError, UsageError, WrongKeyError
from understudy.client.results import Binding
from understudy_shared.base.extras import install_fix

if TYPE_CHECKING:
    from understudy.client.core.direct import Direct


class Given(NamedTuple):
    """The bounds of a read, as JSON. `session` is the position that the client added by itself."""

    members: Mapping[str, Any]
    wait_s: float
    session: str | None


_NO_BOUNDS = Given({}, 0.0, None)


class Reader:
    """The way to read: a client, its direct routing, and the version that all of its reads name, if any.

    Raises UsageError for addresses of nodes that cannot be parsed.
    """

    def __init__(
        self, state: ClientState, named: Mapping[str, Any] | None = None, *, direct: Direct | None = None
    ) -> None:
        self.state = state
        self.named = dict(named or {})
        self.direct = _direct(state) if direct is None and state.is_direct else direct

    def at(self, moment: Any, version: int | None) -> Reader:
        """Return a reader of the version committed at a moment, or of a version by its number."""
        if (moment is None) == (version is None):
            raise UsageError("at() takes a moment or a version", where="at", fix="Give at(moment), or at(version=12)")
        return self.naming({"version": version} if moment is None else {"at": moment})

    def naming(self, named: Mapping[str, Any]) -> Reader:
        """Return a reader of one version. Raises UsageError if this reader names one already."""
        if self.named:
            known = next(iter(self.named))
            raise UsageError(
                f"these reads have a version already, by {known}", where=next(iter(named)), fix="Leave it out"
            )
        bound_members(named)
        return Reader(self.state, named, direct=self.direct)

    def bounds(self, given: Mapping[str, Any]) -> Given:
        """Return the bounds of one read. Raises UsageError."""
        session = self.state.position.token if self.state.settings.session else None
        if not given and not self.named and session is None:
            return _NO_BOUNDS
        both = {**self.named, **given}
        members = bound_members(both, session)
        used = session if session is not None and members.get("min_position") == session else None
        return Given(members, wait_s(members), used)

    def read(self, request: Request, session: str | None, deadline_s: float) -> Steps[Any]:
        """Send a request. A session whose history is gone ends with the error that says so."""
        try:
            return (yield from call(self.state, request, deadline_s))
        except LineageChangedError:
            if session is not None:
                self.state.position.forget(session)
            raise


def _direct(state: ClientState) -> Direct:
    """Return the direct routing of a client. It imports the codec of Spark's keys, which other clients do not need."""
    from understudy.client.core.direct import Direct  # noqa: PLC0415
    from understudy.client.core.placement import NodeAddresses  # noqa: PLC0415

    return Direct(NodeAddresses(state.servers.endpoints, state.addresses), state)


class BoundStore:
    """A store by its name, and the models of its keys and values."""

    def __init__(self, reader: Reader, name: str, *, key: type | None = None, value: type | None = None) -> None:
        self.reader, self.name, self.path = reader, name, store_path(name)
        self._models = (key, value)
        self._binding: Binding | None = None
        self.is_bound = key is not None or value is not None

    def __repr__(self) -> str:
        return f"Store({self.name!r})"

    def binding(self, deadline_s: float) -> Steps[Binding | None]:
        """Return the models, checked against the schema of the store before the first use."""
        if self.is_bound and self._binding is None:
            self._binding = _bind((yield from self._schema(deadline_s)), *self._models)
        return self._binding

    def read(self, request: Request, session: str | None, deadline_s: float) -> Steps[Any]:
        """Send a request about this store. Raises BadReplyError for an answer that is about another one."""
        answer = yield from self.reader.read(request, session, deadline_s)
        require(isinstance(answer, dict) and answer.get("store", self.name) == self.name, "it is of another store")
        return answer

    def key(self, binding: Binding | None, parts: Sequence[Any]) -> Sequence[Any]:
        """Return the parts of a key: those given, or the columns of a model."""
        if binding is None or self._models[0] is None:
            return parts
        if len(parts) != 1:
            what = f"the key is one {self._models[0].__name__}, and {len(parts)} values are given"
            raise UsageError(what, where="key", fix="Give the key as a model")
        return [binding.key_columns(parts[0])]

    def exact(self, parts: Sequence[Any], deadline_s: float, action: str = "lookup") -> Steps[Sequence[Any]]:
        """Return the parts of a key as they can be sent: words that a proxy may rewrite are JSON, by column.

        `action` is the call that they are for. Raises BadKeyError for words that do not fit the store.
        """
        if are_plain(parts) or not are_segments(parts):
            return parts
        keys, codec = yield from self._codec(action, deadline_s)
        return [keys.by_column(codec, parts)]

    def check_key(self, parts: Sequence[Any], answered: Any, deadline_s: float, action: str = "lookup") -> Steps[None]:
        """Raise WrongKeyError unless the key in an answer is the one that was asked for."""
        require(type(answered) is dict, "an answer has no key")
        if is_printed(json_of(parts), answered):
            return
        is_known = (self.name, action == "windows") in self.reader.state.codecs
        keys, codec = yield from self._codec(action, deadline_s)
        if keys.is_same(codec, parts, answered):
            return
        if is_known:  # the columns may be others by now: the query may have begun anew
            keys, codec = yield from self._codec(action, deadline_s, is_new=True)
            if keys.is_same(codec, parts, answered):
                return
        raise WrongKeyError(self.name, json_of(parts), answered)

    def printed(self, many: Sequence[Sequence[Any]], deadline_s: float) -> Steps[list[Any]]:
        """Return keys by column, as servers print them. Those that do not fit the store are left out."""
        keys, codec = yield from self._codec("watch", deadline_s)
        found: list[Any] = keys.printed(codec, many)
        return found

    def _codec(self, action: str, deadline_s: float, *, is_new: bool = False) -> Steps[tuple[Any, Any]]:
        """Return the module that reads keys by their types, and this store's codec, which is asked for once."""
        keys, codecs = import_module("understudy.client.core.placement"), self.reader.state.codecs
        of_windows = action == "windows"
        found = None if is_new else codecs.get((self.name, of_windows))
        if found is None:
            schema = yield from self._schema(deadline_s)
            found = codecs[self.name, of_windows] = keys.codec_of(schema, of_windows=of_windows)
        return keys, found

    def _schema(self, deadline_s: float) -> Steps[Mapping[str, Any]]:
        schema: Mapping[str, Any] = yield from call(self.reader.state, Request("GET", self.path), deadline_s)
        require("key" in schema and "value" in schema and "kind" in schema, "a store has no columns")
        return schema


def _bind(schema: Mapping[str, Any], key: type | None, value: type | None) -> Binding:
    try:
        bind = import_module("understudy.typed").bind  # only those who name models need it
    except ModuleNotFoundError as error:
        what = f"models of keys and values need the module {error.name}"
        raise UsageError(what, where="store", fix=install_fix()) from None
    found: Binding = bind(schema, key=key, value=value)
    return found
