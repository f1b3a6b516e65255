"""The inputs of a query, each opened once: callers that ask it before the query reads leave it open.

Connecting takes longer than asking, so a query that begins connects once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from understudy_aligned.inputs.opening import open_input
from understudy_aligned.inputs.protocol import Input, InputConfig


class OpenInputs:
    """Opens an input when it is first asked for. Not thread-safe."""

    def __init__(self, configs: Sequence[InputConfig]) -> None:
        self.configs = configs
        self._kept: dict[int, Input] = {}
        self._taken: set[int] = set()

    @contextmanager
    def lend(self, index: int) -> Iterator[Input]:
        """Lend input number `index`. One that was taken is in use: another is opened for the block.

        After an error the input is closed, so that the next caller gets one that knows nothing of it.
        """
        opened = self._kept.pop(index, None) or open_input(self.configs[index])
        is_kept = False
        try:
            yield opened
            is_kept = index not in self._taken
        finally:
            if is_kept:
                self._kept[index] = opened
            else:
                opened.close()

    def take(self, index: int) -> Input:
        """Hand an input over to a caller that closes it."""
        self._taken.add(index)
        return self._kept.pop(index, None) or open_input(self.configs[index])

    def close(self) -> None:
        """Close what is open and was not taken."""
        while self._kept:
            self._kept.popitem()[1].close()
