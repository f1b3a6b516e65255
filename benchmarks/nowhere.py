"""A transport for measurements of a protocol without sockets."""

from __future__ import annotations

import asyncio
from typing import Any


class Nowhere(asyncio.Transport):
    """A transport that writes nothing."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...
