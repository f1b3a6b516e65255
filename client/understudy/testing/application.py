"""`Application`: one query of a server, and what a test does to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING

from understudy.client.errors import UsageError
from understudy.testing.stores import Changes, DeclaredStore

if TYPE_CHECKING:
    from understudy.testing.service import Query

MAX_AGE = timedelta(days=365)
"""Longest time by which the clock of a server moves at once."""


class Trouble:
    """A fault of a server, until `end`, or until the end of a `with` block."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def end(self) -> None:
        """End it; the server is as before when this returns."""
        self._end()

    def __enter__(self) -> Trouble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Application:
    """One query of a server: its commits, and what goes wrong with it. Others do not notice."""

    def __init__(self, stores: Mapping[str, DeclaredStore], query: Query | None) -> None:
        """Take the stores. `query` writes them; None where a server has several applications."""
        self._stores = stores
        self._only = query
        self._troubles: set[Trouble] = set()

    @property
    def _query(self) -> Query:
        if self._only is None:
            raise UsageError(
                "the server has several applications",
                where="application",
                fix='Name one: server.application("orders").commit(...)',
            )
        return self._only

    # ---- the query

    @property
    def version(self) -> int:
        """The version that was committed last."""
        return self._query.version

    @property
    def now(self) -> datetime:
        """The time at the server, which `lag` moves forward."""
        return datetime.fromtimestamp(self._query.wall_us() / 1e6, UTC)

    def commit(self, changes: Mapping[str, Changes] | None = None) -> int:
        """Commit the next version, and return it when it can be read.

            server.commit({"aircraft": {"N1": {"flights": 4}, "N2": None}})

        Keys are given as to a client, values by column or as a model; None deletes a key. Raises UsageError and
        BadKeyError for what does not fit, and commits nothing then.
        """
        query, changes = self._query, changes or {}
        unknown = [name for name in changes if name not in self._stores]
        if unknown:
            raise UsageError(
                f"there is no store {unknown[0]!r}", where="commit", fix=f"The server has {', '.join(self._stores)}"
            )
        return query.commit({name: self._stores[name].changes(each) for name, each in changes.items()})

    # ---- what goes wrong

    def lag(self, age: timedelta | None, *, versions: int = 1) -> Trouble:
        """Let answers be `age` behind: the query commits `versions` more, which are not shown, and that time passes.

        What is committed meanwhile is shown at the end, too. With None the server loses its storage: lag is unknown.
        """
        if age is not None and (not isinstance(age, timedelta) or not timedelta(0) <= age <= MAX_AGE):
            raise UsageError(
                f"age={age!r} is not a time up to a year", where="age", fix="Give timedelta(seconds=30), or None"
            )
        if isinstance(versions, bool) or not isinstance(versions, int) or not 1 <= versions <= 1000:
            raise UsageError(
                f"versions={versions!r} is not a number from 1 to 1000", where="versions", fix="Give versions=1"
            )
        return self._began(self._query.lag(None if age is None else age.total_seconds() * 1000, versions))

    def fail(
        self,
        problem: str = "no-acceptable-replica",
        *,
        detail: str = "",
        store: str | None = None,
        times: int | None = None,
    ) -> Trouble:
        """Answer requests of the API with a problem, named by its type: all of them, those of one store, so many."""
        return self._trouble(problem=problem, detail=detail, store=store, times=times)

    def slow(self, delay: timedelta, *, store: str | None = None, times: int | None = None) -> Trouble:
        """Answer requests of the API after a delay."""
        if not isinstance(delay, timedelta) or delay < timedelta(0):
            raise UsageError(f"delay={delay!r} is not a time", where="delay", fix="Give timedelta(milliseconds=50)")
        return self._trouble(delay_s=delay.total_seconds(), store=store, times=times)

    def cut(self, *, store: str | None = None, times: int | None = None) -> Trouble:
        """Close the connection of a request of the API in the middle of its answer."""
        return self._trouble(is_cut=True, store=store, times=times)

    def heal(self) -> None:
        """End all troubles."""
        for trouble in list(self._troubles):
            trouble.end()

    def _trouble(
        self,
        *,
        problem: str | None = None,
        detail: str = "",
        delay_s: float = 0.0,
        is_cut: bool = False,
        store: str | None = None,
        times: int | None = None,
    ) -> Trouble:
        query = self._query
        if store is not None and store not in self._stores:
            raise UsageError(f"there is no store {store!r}", where="store", fix=f"Give {', '.join(self._stores)}")
        if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
            raise UsageError(f"times={times!r} is not a number of requests", where="times", fix="Give times=1, or None")
        return self._began(
            query.fault(problem=problem, detail=detail, delay_s=delay_s, is_cut=is_cut, store=store, times=times)
        )

    def _began(self, end: Callable[[], None]) -> Trouble:
        def ended() -> None:
            self._troubles.discard(trouble)
            end()

        trouble = Trouble(ended)
        self._troubles.add(trouble)
        return trouble
