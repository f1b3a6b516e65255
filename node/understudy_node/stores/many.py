"""Answers that hold many elements of one key: a page of them, which says where the next begins. None is left out
silently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from understudy_node.stores.finder import Found
from understudy_shared.http.problems import Problem, ProblemError, ProblemType
from understudy_shared.selection import Selection

MAX_PAGE_BYTES: Final = 1024 * 1024
"""A page ends before the element that would take it beyond this, unless that is its only one. A batch has a bound of
its own.
"""

MAX_SORTED: Final = 10_000
"""Most elements of a key that lie in another order than readers get them in: each page reads all of them, in about 20
ms.
"""

MAX_LEFT_OUT: Final = 2_000
"""Most expired elements that a page leaves out before it ends: they are printed, too, which holds the event loop."""

HIDDEN: Final = Found(b'"found":false,"expired":true,', is_hidden=True)
"""All elements have expired, and nothing that has was asked for."""


def found_page(member: str, printed: Iterable[bytes | None], selection: Selection) -> Found | None:
    """A page of the elements from `selection.offset` on; None where a key has no elements at all.

    `printed` are these elements, each printed when it is asked for; None stands for one that is left out because it
    has expired. After many of those a page ends, even without an element, and says where the next one begins.
    """
    shown: list[bytes] = []
    size, passed, next_at = 0, 0, None
    for at, element in enumerate(printed, selection.offset):
        passed += 1
        if element is None:
            if passed - len(shown) > MAX_LEFT_OUT:
                next_at = at + 1
                break
            continue
        size += len(element)
        if len(shown) == selection.limit or (shown and size > MAX_PAGE_BYTES):
            next_at = at
            break
        shown.append(element)
    if not shown and selection.offset == 0 and next_at is None:
        return HIDDEN if passed else None
    members = b'"found":true,"%b":[%b],' % (member.encode(), b",".join(shown))
    return Found(members, is_page=True, next=next_at)


def require_sortable(what: str, count: int) -> None:
    """Raise the problem of a key with too many elements to sort. `what` they are, in the plural."""
    if count > MAX_SORTED:
        fix = "Read them with Spark's state reader"
        detail = f"this key has more than {MAX_SORTED} {what}"
        raise ProblemError(Problem(ProblemType.TOO_LARGE, detail, where="key", fix=fix))
