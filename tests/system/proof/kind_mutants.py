"""Bugs of one kind of state each, as patches of a running node, or of a router."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.system.proof.patching import patch

Elements = list[tuple[bytes, Any]]
"""The elements of a key, each with the bytes by which it is found again."""

STORES = "understudy_node.stores"


def keep_the_first_value() -> None:
    """Answer a value as it was when it was asked for first."""
    from understudy_node.stores.state_variables import ValueVariable

    find, first = ValueVariable.find, dict[bytes, Any]()

    def found(self: ValueVariable, view: Any, stored: bytes, selection: Any) -> Any:
        now = find(self, view, stored, selection)
        return now if now is None else first.setdefault(stored, now)

    ValueVariable.find = found  # type: ignore[method-assign]


def lose_an_element() -> None:
    """Leave the second value of a list out."""
    _change_elements("state_variables", "values", lambda elements: elements[:1] + elements[2:])


def reverse_lists() -> None:
    """Give the values of a list the newest first; pages go on where they should."""

    def reversed_(elements: Elements) -> Elements:
        values = [value for _, value in reversed(elements)]
        return [(start, value) for (start, _), value in zip(elements, values, strict=True)]

    _change_elements("state_variables", "values", reversed_)


def mix_up_entries() -> None:
    """Give each entry of a map what is stored of the next."""

    def mixed(elements: Elements) -> Elements:
        kept = [value for _, (_, value) in elements]
        return [
            (start, (rest, value)) for (start, (rest, _)), value in zip(elements, [*kept[1:], *kept[:1]], strict=True)
        ]

    _change_elements("state_variables", "entries", mixed)


def forget_a_timer() -> None:
    """Leave the last timer of a key out."""
    _change_elements("state_variables", "timers", lambda elements: elements[:-1])


def end_sessions_early() -> None:
    """Say that a session ends when it starts."""

    def early(session_printer: Callable[..., Any]) -> Callable[..., Any]:
        def printer(*arguments: Any) -> Any:
            print_session = session_printer(*arguments)

            def print_early(row: bytes) -> Any:
                session, end_us = print_session(row)
                return {**session, "end": session["start"]}, end_us

            return print_early

        return printer

    patch(f"{STORES}.parts", "session_printer", early)


def turn_matches_round() -> None:
    """Say of a join's row that it found a match when it did not, and the other way round."""

    def turned(row_printer: Callable[..., Any]) -> Callable[..., Any]:
        def printer(*arguments: Any) -> Any:
            print_row = row_printer(*arguments)

            def print_turned(row: bytes) -> Any:
                said = print_row(row)
                return {**said, "matched": not said["matched"]}

            return print_turned

        return printer

    patch(f"{STORES}.parts", "row_printer", turned)


def expire_too_late() -> None:
    """Say that a key of a set counts for a second longer."""
    patch(f"{STORES}.operator_state", "timestamp_text", lambda text: lambda micros: text(micros + 1_000_000))


def believe_one_partition() -> None:
    """Answer for a key of a scattered store what its first partition says."""
    patch("understudy_router.questions.lookup.forward", "answer_of", lambda _: lambda store, parts: parts[0])


def cut_pages() -> None:
    """Say of every page that it is the last."""

    def cut(found_page: Callable[..., Any]) -> Callable[..., Any]:
        def page(*arguments: Any, **named: Any) -> Any:
            found = found_page(*arguments, **named)
            return found if found is None else found._replace(next=None)

        return page

    for module in ("state_variables", "operator_state"):
        patch(f"{STORES}.{module}", "found_page", cut)


def _change_elements(module: str, member: str, change: Callable[[Elements], Elements]) -> None:
    """Change the elements of all keys that are shown under `member`."""

    def changed(found_page: Callable[..., Any]) -> Callable[..., Any]:
        def page(shown: str, elements: Iterable[Any], *arguments: Any, **named: Any) -> Any:
            given: Iterator[Any] = iter(change(list(elements)) if shown == member else elements)
            return found_page(shown, given, *arguments, **named)

        return page

    patch(f"{STORES}.{module}", "found_page", changed)
