"""Answers that hold many elements of one key: all of them, or a problem. None is ever left out silently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from understudy_shared.http.problems import Problem, ProblemError, ProblemType

MAX_ELEMENTS: Final = 1_000
"""As many as keys of a batch: printing them holds the event loop."""

MAX_ELEMENTS_BYTES: Final = 1024 * 1024
"""Most bytes that the elements of one key may have when printed. A batch has a bound of its own."""


def found_many(member: str, printed: Sequence[bytes]) -> bytes | None:
    """The members of an answer that say what was found: a list; None where there are no elements."""
    if not printed:
        return None
    body = b",".join(printed)
    if len(body) > MAX_ELEMENTS_BYTES:
        raise _too_large(f"the {member} of this key take {len(body)} bytes, above {MAX_ELEMENTS_BYTES}")
    return b'"found":true,"%b":[%b],' % (member.encode(), body)


def too_many(member: str) -> ProblemError:
    """The problem of a key with more elements than one answer holds."""
    return _too_large(f"this key has more than {MAX_ELEMENTS} {member}")


def _too_large(detail: str) -> ProblemError:
    fix = "One answer does not hold them: read them with Spark's state reader"
    return ProblemError(Problem(ProblemType.TOO_LARGE, detail, where="key", fix=fix))
