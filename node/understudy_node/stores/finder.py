"""Lookups that answer with more than one stored row: the interface of their finders, pages of the elements of one key,
and whether elements have expired. No element is left out silently.
"""

from __future__ import annotations

import base64
import json
import secrets
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple, TypeVar

from understudy_node.checkpoint.operators import JOIN
from understudy_node.replica.task_view import TaskView
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.bounds import FIRST_PLACE, ElementPlace, Selection
from understudy_shared.reads.tokens import PageCursor

_DELAY: Final = "spark.watermarkDelayMs"
"""Key in the metadata of a column that has a watermark."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """The expiry of records that Spark has not removed yet, where the state shows that.

    Spark removes them in the next batch, by the watermark that this version left. Three facts decide: whether the
    watermark reaches the operator's rows at all, which the schema of its state shows; the watermark that the version
    left; and whether the operator may be downstream of a join, which holds the watermark back by an amount that only
    the plan knows. `is_watermarked`: a watermark reaches them. `may_lag`: it may be behind the query's.
    """

    is_watermarked: bool = True
    may_lag: bool = False

    def is_expired(self, expires_us: int, view: TaskView) -> bool | None:
        """Whether the watermark has reached an expiry, as Spark compares them; None while that is unknown."""
        if not self.is_watermarked:
            return False
        watermark_ms = view.next_watermark_ms
        if watermark_ms is None:  # Spark purged the version's commit
            return None
        if watermark_ms * 1000 < expires_us:
            return False
        return None if self.may_lag else True


def is_watermarked(*schemas_json: str) -> bool:
    """Whether a column of these schemas, as Spark's JSON, has a watermark."""
    return any(_DELAY in field["metadata"] for text in schemas_json for field in json.loads(text)["fields"])


def may_stand_behind_join(operator_id: int, operators: Iterable[tuple[int, str]]) -> bool:
    """Whether a join may be upstream of an operator. `operators` are all operators of the query: id, and Spark's name.

    Spark numbers operators from the sink to the sources, so upstream operators have higher numbers.
    """
    return any(name == JOIN and other > operator_id for other, name in operators)


class FoundMembers(NamedTuple):
    """The members of an answer for a stored key. `members` end with a comma.

    `is_hidden`: all of it has expired, and the reader asked not to see expired elements; the members say so. A page of
    a list says where the `next` one begins, None after the last: the number of its first element, and a `place` at or
    before it.
    """

    members: bytes
    is_hidden: bool = False
    is_page: bool = False
    next: int | None = None
    place: ElementPlace = FIRST_PLACE


class KeyRecords:
    """The records of a store's keys. By default each key has one, found by the row of the key after `row_prefix`."""

    __slots__ = ()
    row_prefix: bytes

    def key_row(self, kept: bytes) -> bytes:
        """Return the row bytes of the key that finds a record of the store. `kept` is the record's key."""
        return kept[len(self.row_prefix) :]

    def first_bytes(self, view: TaskView) -> bytes | None:
        """Return the common prefix of these records' keys, in a store that has others, too; None if no record can
        exist.
        """
        return b""

    def own_bytes(self, kept: bytes) -> bytes:
        """Return the key prefix of all records of one key, and of no other. `kept` is the key of one of them."""
        return kept

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes | None:
        """Return the key prefix, after `first_bytes`, of records with a key row that begins with `start`; None if other
        keys lie between them. `row_bytes` is the size of these rows; None: it differs.
        """
        return self.row_prefix + start


class Finder(KeyRecords, ABC):
    """A finder of the records that a version of a task has for a key."""

    def __init__(self, row_prefix: bytes) -> None:
        self.row_prefix = row_prefix

    @abstractmethod
    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        """Find a key, with the elements that `selection` asks for; None for an absent key.

        `stored` is the key as the provider would store it: its prefix, then the row.
        """


class ByVersion(Finder):
    """A finder that uses the finder of each version: columns may change between two, but key columns never do.

    `earlier`, oldest first, are the finders of earlier columns, each with its last version.
    """

    def __init__(self, newest: Finder, earlier: Sequence[tuple[int, Finder]]) -> None:
        super().__init__(newest.row_prefix)
        self._newest = newest
        self._earlier = earlier

    def find(self, view: TaskView, stored: bytes, selection: Selection) -> FoundMembers | None:
        of_version = (finder for last_version, finder in self._earlier if view.version <= last_version)
        return next(of_version, self._newest).find(view, stored, selection)

    def key_row(self, kept: bytes) -> bytes:
        return self._newest.key_row(kept)

    def first_bytes(self, view: TaskView) -> bytes | None:
        return self._newest.first_bytes(view)

    def own_bytes(self, kept: bytes) -> bytes:
        return self._newest.own_bytes(kept)

    def start_bytes(self, start: bytes, row_bytes: int | None) -> bytes | None:
        return self._newest.start_bytes(start, row_bytes)


MakeFinder = Callable[[bytes], Finder]
"""A function that makes a finder from the provider's prefix of a row."""


Element = TypeVar("Element")

MAX_PAGE_BYTES: Final = 1024 * 1024
"""Size at which a page ends, before the element that would exceed it, unless that is its only one. A batch has a bound
of its own.
"""

MAX_SORTED: Final = 10_000
"""Limit on the elements of a key that are stored in another order than readers get them: each page reads all of them,
in about 20 ms.
"""

MAX_LEFT_OUT: Final = 2_000
"""Number of expired elements in a page before it ends: they are printed, too, which holds the event loop."""

MAX_PASSED_OVER: Final = 5_000
"""Number of elements before its first that a page skips: about 10 ms, on top of those that it shows."""

HIDDEN: Final = FoundMembers(b'"found":false,"expired":true,', is_hidden=True)
"""The answer when all elements have expired, and the reader asked not to see expired ones."""


def found_page(
    member: str,
    elements: Iterable[tuple[bytes, Element]],
    print_element: Callable[[Element], bytes | None],
    selection: Selection,
    *,
    first: int,
) -> FoundMembers | None:
    """Make a page of the elements from `selection.offset` on; None if a key has no elements.

    `elements` begin with number `first`, each with the bytes to find it again; without bytes if its number finds it.
    They are printed one by one; None stands for one that is left out because it has expired. After many of those a page
    ends, even without an element, and says where the next one begins. So does a page that skips many before its first,
    because this process knows no place in its cursor.
    """
    shown: list[bytes] = []
    size, left_out, next_at, place = 0, 0, None, selection.place
    for at, (start, element) in enumerate(elements, first):
        if start != place.start:
            place = ElementPlace(at, start)
        if at < selection.offset:
            # Skip elements that share a place together, or the next page would begin where this one did.
            if at - first >= MAX_PASSED_OVER and place.number > first:
                next_at = selection.offset
                break
            continue
        printed = print_element(element)
        if printed is None:
            left_out += 1
            if left_out > MAX_LEFT_OUT:
                next_at = at + 1
                break
            continue
        size += len(printed)
        if len(shown) == selection.limit or (shown and size > MAX_PAGE_BYTES):
            next_at = at
            break
        shown.append(printed)
    if not shown and selection.offset == 0 and next_at is None:
        return HIDDEN if left_out else None
    members = b'"found":true,"%b":[%b],' % (member.encode(), b",".join(shown))
    return FoundMembers(members, is_page=True, next=next_at, place=place)


def by_number(elements: Iterable[Element]) -> Iterator[tuple[bytes, Element]]:
    """Yield elements that `found_page` finds by their number."""
    return ((b"", element) for element in elements)


def require_sortable(what: str, count: int) -> None:
    """Raise the problem of a key with too many elements to sort. `what` names them, in the plural."""
    if count > MAX_SORTED:
        fix = "Read them with Spark's state reader"
        detail = f"this key has more than {MAX_SORTED} {what}"
        raise ProblemError(Problem(ProblemType.TOO_LARGE, detail, where="key", fix=fix))


MAX_START_BYTES: Final = 256
"""Limit on a place: a cursor is part of a URL. For a longer key its beginning is enough: the page then skips elements
that share it.
"""

MAX_ISSUERS: Final = 3
"""Number of places in one cursor: for as many replicas as a task usually has."""

_INDEX: Final = struct.Struct("<Q")
_SEAL_BYTES: Final = 16
_BETWEEN: Final = ","
"""Separator of places: not among the characters of base 85."""


class PlaceSealer:
    """The sealer of the places where next pages begin. It recognises its own in a cursor.

    A cursor is untrusted. Bytes that point into a list or a range of keys could be forged to point between two
    elements, and what is there would look like damaged state. So a place is sealed with a secret that never leaves the
    process. A process that finds no place of its own skips the elements before the page, a bounded number per request.
    It leaves the places of others in the cursor, so that replicas which are asked in turn all make progress.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def put(self, cursor: PageCursor, place: ElementPlace, *, beside: PageCursor | None = None) -> PageCursor:
        """Put this place into the cursor, with the other issuers' from `beside`, the cursor before it."""
        if not place.start:  # elements are found by their number: no place needed
            return cursor
        said = _INDEX.pack(place.number) + place.start[:MAX_START_BYTES]
        own = base64.b85encode(self._seal(cursor, said) + said).decode()
        others = [] if beside is None else [each for each in _parts(beside) if self._known(beside, each) is None]
        return replace(cursor, place=_BETWEEN.join([own, *others][:MAX_ISSUERS]))

    def of(self, cursor: PageCursor) -> ElementPlace:
        """Return the place that this process put into the cursor. Return the first place if the cursor has no place of
        this process, or only one after the offset.
        """
        known = (self._known(cursor, part) for part in _parts(cursor))
        return next((place for place in known if place is not None and place.number <= cursor.offset), FIRST_PLACE)

    def _known(self, cursor: PageCursor, part: str) -> ElementPlace | None:
        try:
            sealed = base64.b85decode(part)
        except ValueError:
            return None
        seal, said = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        if len(said) <= _INDEX.size or not compare_digest(seal, self._seal(cursor, said)):
            return None
        return ElementPlace(_INDEX.unpack_from(said)[0], said[_INDEX.size :])

    def _seal(self, cursor: PageCursor, said: bytes) -> bytes:
        """Seal a place. It holds for a key at a version of a store; the offset is the reader's to choose."""
        of = repr((cursor.store, cursor.lineage, cursor.key, cursor.version, cursor.committed_at_us)).encode()
        return blake2b(of + b"\0" + said, key=self._secret, digest_size=_SEAL_BYTES).digest()


def _parts(cursor: PageCursor) -> list[str]:
    return cursor.place.split(_BETWEEN)[:MAX_ISSUERS] if cursor.place else []


OWN_PLACES: Final = PlaceSealer(secrets.token_bytes(32))
"""The places of this process."""
