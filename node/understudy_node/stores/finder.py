"""The interface of lookups whose answer is not one row as it is stored: chosen when a store is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from understudy_node.replica.task_view import TaskView
from understudy_shared.reads.bounds import FIRST_PLACE, ElementPlace, Selection


class Found(NamedTuple):
    """The members of an answer for a stored key. `members` have a comma behind them.

    `is_hidden`: all of it has expired, and the reader asked not to see expired elements; the members say so. A page of
    a list says where the `next` one begins, None after the last: the number of its first element, and a `place` at or
    before it.
    """

    members: bytes
    is_hidden: bool = False
    is_page: bool = False
    next: int | None = None
    place: ElementPlace = FIRST_PLACE


class Finder(Protocol):
    """A finder of what a version of a task holds for a key."""

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """Find a key, with the elements that `selection` asks for; None for an absent key.

        `stored` is the key as the provider would store it: its prefix, then the row.
        """

    def key_row(self, kept: bytes) -> bytes:
        """Return the row bytes of the key by which a record of the store is found. `kept` is the record's key."""

    def first_bytes(self, view: TaskView) -> bytes | None:
        """Return the bytes with which the keys of these records begin, in a store that has others, too; None where no
        record can exist.
        """

    def own_bytes(self, kept: bytes) -> bytes:
        """Return the bytes with which the keys of all records of one key begin, and of no other. `kept` is the key of
        one of them.
        """

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes | None:
        """Return the bytes, behind `first_bytes`, with which the keys of records begin whose key's row begins with
        `start`; None where other keys lie between them. `row_bytes` is the size of these rows; None: it differs.
        """


class ByVersion:
    """A finder that uses the finder of each version: columns may have changed between two."""

    def __init__(self, newest: Finder, earlier: Sequence[tuple[int, Finder]]) -> None:
        """Take the finders. `earlier`, oldest first, are those of earlier columns, each with its last version."""
        self._newest = newest
        self._earlier = earlier

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> Found | None:
        """See `Finder`."""
        of_version = (finder for last_version, finder in self._earlier if view.version <= last_version)
        return next(of_version, self._newest).find(view, stored, selection)

    def key_row(self, kept: bytes) -> bytes:
        """See `Finder`. Keys never change their columns."""
        return self._newest.key_row(kept)

    def first_bytes(self, view: TaskView) -> bytes | None:
        """See `Finder`."""
        return self._newest.first_bytes(view)

    def own_bytes(self, kept: bytes) -> bytes:
        """See `Finder`. Keys never change their columns."""
        return self._newest.own_bytes(kept)

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes | None:
        """See `Finder`. Keys never change their columns."""
        return self._newest.start_bytes(start, row_bytes)


MakeFinder = Callable[[bytes], Finder]
"""A function that makes a finder from the provider's prefix of a row."""
