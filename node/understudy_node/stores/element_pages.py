"""Answers that hold many elements of one key: a page of them, with the place where the next begins. No element is left
out silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from understudy_node.stores.finder import Found
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.reads.bounds import ElementPlace, Selection

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
"""Number of elements before its first that a page skips: about 10 ms, beside those that it shows."""

HIDDEN: Final = Found(b'"found":false,"expired":true,', is_hidden=True)
"""The answer when all elements have expired, and the reader asked not to see expired ones."""


def found_page(
    member: str,
    elements: Iterable[tuple[bytes, Element]],
    print_element: Callable[[Element], bytes | None],
    selection: Selection,
    *,
    first: int,
) -> Found | None:
    """Make a page of the elements from `selection.offset` on; None where a key has no elements at all.

    `elements` are those from number `first` on, each with the bytes by which the version finds it again; without bytes
    where it is found by its number. They are printed one by one; None stands for one that is left out because it has
    expired. After many of those a page ends, even without an element, and says where the next one begins. So does a
    page that passes over many before its first, because its cursor has no place that this process knows.
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
    return Found(members, is_page=True, next=next_at, place=place)


def by_number(elements: Iterable[Element]) -> Iterator[tuple[bytes, Element]]:
    """Yield elements that `found_page` finds by their number."""
    return ((b"", element) for element in elements)


def require_sortable(what: str, count: int) -> None:
    """Raise the problem of a key with too many elements to sort. `what` they are, in the plural."""
    if count > MAX_SORTED:
        fix = "Read them with Spark's state reader"
        detail = f"this key has more than {MAX_SORTED} {what}"
        raise ProblemError(Problem(ProblemType.TOO_LARGE, detail, where="key", fix=fix))
