"""How a bug is planted: a function is replaced where a module uses it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

Made = Callable[[Callable[..., Any]], Callable[..., Any]]


def patch(module: str, name: str, made: Made) -> None:
    """Replace a function where a module uses it by what is made of it."""
    target = import_module(module)
    setattr(target, name, made(getattr(target, name)))
