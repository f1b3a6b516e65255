"""The seam to the node in memory, which is found by its entry point: this package imports no service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

from understudy_shared.base.errors import UnderstudyError
from understudy_shared.base.extras import install_fix
from understudy_shared.spark.types import StructType

Change = tuple[object, object]
"""The JSON of a key and of its value; without a value the key is deleted."""

End = Callable[[], None]
"""A function that ends a trouble."""


class MemoryConnection(Protocol):
    """A connection to the server."""

    def send(self, data: bytes) -> None: ...

    def hang_up(self) -> None:
        """Close it; from now on nothing is received."""


class MemoryApplication(Protocol):
    """One application of the node in memory. Any thread may call it."""

    @property
    def version(self) -> int:
        """The version that was committed last."""

    def wall_us(self) -> int:
        """Return the time of its clock."""

    def commit(self, changes: Mapping[str, Sequence[Change]]) -> int:
        """Commit the next version and return it."""

    def lag(self, age_ms: float | None, versions: int) -> End:
        """Keep replicas behind by so much; without an age lag is unknown."""

    def trouble(
        self, *, problem: str | None, detail: str, delay_s: float, is_cut: bool, store: str | None, times: int | None
    ) -> End:
        """Let requests meet a problem, a delay, or a connection that is cut."""


class MemoryService(Protocol):
    """The node in memory. Any thread may call it."""

    @property
    def applications(self) -> Mapping[str, MemoryApplication]:
        """The applications by their names; one alone has the name that is empty."""

    def connect(self, received: Callable[[bytes], None], lost: Callable[[], None]) -> MemoryConnection:
        """Open a connection. Its functions are called on the server's loop, `lost` once. Raises ConnectionRefusedError
        once the service is closed.
        """

    def listen(self, host: str, port: int) -> str:
        """Take connections at a port, too, and return its URL."""

    def close(self) -> None:
        """End it."""


Declared = tuple[Mapping[str, tuple[StructType, StructType, Mapping[str, object]]], Mapping[str, Sequence[Change]]]
"""The stores of an application, and the rows of its first version."""


class OpenService(Protocol):
    """The entry point."""

    def __call__(self, declared: Mapping[str, Declared], *, partitions: int) -> MemoryService: ...


def find_service() -> OpenService:
    """Load the node in memory, or say which extra to install."""
    missing = "the node in memory"
    try:
        for entry in entry_points(group="understudy.services", name="testing"):
            found: Any = entry.load()
            service: OpenService = found
            return service
    except ModuleNotFoundError as error:
        missing = str(error.name)
    raise UnderstudyError(f"understudy.testing needs {missing}, which is not installed", fix=install_fix("node"))
