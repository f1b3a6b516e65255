"""`java.util.PriorityQueue`, to the letter: what is equal comes out as it does there, which is in no order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class JavaPriorityQueue(Generic[T]):
    """A binary heap; `compare` is below, at or above 0 as Java's comparators are."""

    def __init__(self, compare: Callable[[T, T], int]) -> None:
        self._compare = compare
        self._heap: list[T] = []

    def offer(self, item: T) -> None:
        self._heap.append(item)
        place = len(self._heap) - 1
        while place > 0:
            parent = (place - 1) >> 1
            if self._compare(item, self._heap[parent]) >= 0:
                break
            self._heap[place] = self._heap[parent]
            place = parent
        self._heap[place] = item

    def poll(self) -> T | None:
        """Remove the least item and return it; None if there is none."""
        if not self._heap:
            return None
        least, last = self._heap[0], self._heap.pop()
        if self._heap:
            self._sift_down(0, last)
        return least

    def remove_if(self, is_removed: Callable[[T], bool]) -> None:
        """Remove items. Only if there are any is the heap made anew."""
        kept = [item for item in self._heap if not is_removed(item)]
        if len(kept) == len(self._heap):
            return
        self._heap = kept
        for place in range((len(kept) >> 1) - 1, -1, -1):
            self._sift_down(place, kept[place])

    def _sift_down(self, place: int, item: T) -> None:
        half = len(self._heap) >> 1
        while place < half:
            child = 2 * place + 1
            if child + 1 < len(self._heap) and self._compare(self._heap[child], self._heap[child + 1]) > 0:
                child += 1
            if self._compare(item, self._heap[child]) <= 0:
                break
            self._heap[place] = self._heap[child]
            place = child
        self._heap[place] = item
