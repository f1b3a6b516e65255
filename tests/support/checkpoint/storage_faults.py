"""Storage that misbehaves while a node reads it: real effects on real files, at a moment of the test's choice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from understudy_node.checkpoint.files import DEFAULT_MAX_READ_BYTES, FetchMethod, LocalFiles


class PausableFiles(LocalFiles):
    """Storage that does not answer while it is paused, as an unreachable mount does: the node sleeps meanwhile."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._running = threading.Event()
        self._running.set()

    def pause(self) -> None:
        """Answer nothing from now on."""
        self._running.clear()

    def resume(self) -> None:
        """Answer again."""
        self._running.set()

    def full_path(self, path: str) -> str:
        self._running.wait()
        return super().full_path(path)


class VanishingFiles(LocalFiles):
    """Deletes a file just before it is read for the first time, after it was listed and chosen: Spark's clean-up."""

    def __init__(self, root: Path, is_victim: Callable[[str], bool]) -> None:
        super().__init__(root)
        self._root_path = Path(root)
        self._is_victim = is_victim
        self._deleting = threading.Lock()
        self.deleted: str | None = None

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        self._delete(path)
        return super().read(path, max_bytes)

    def fetch(self, path: str, destination: Path) -> FetchMethod:
        self._delete(path)
        return super().fetch(path, destination)

    def _delete(self, path: str) -> None:
        with self._deleting:
            if self.deleted is None and self._is_victim(path):
                (self._root_path / path).unlink()
                self.deleted = path


class HeldFile(LocalFiles):
    """Storage that does not answer for one file until it is released."""

    def __init__(self, root: Path, held: str) -> None:
        super().__init__(root)
        self._held = held
        self.released = threading.Event()

    def read(self, path: str, max_bytes: int = DEFAULT_MAX_READ_BYTES) -> bytes:
        if path == self._held:
            self.released.wait()
        return super().read(path, max_bytes)
