"""Texts that others wrote, made safe for a terminal and for a log: one line, no control sequences (pure)."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return `text` with everything that is not printable as `\\uXXXX`."""
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def clipped(value: object, limit: int = 80) -> str:
    """Print a wrong value for an error: text is cut; of a list or an object, which may be deep and long, only its type
    is shown.
    """
    if isinstance(value, str):
        return repr(value if len(value) <= limit else value[:limit] + "...")
    is_small = not value or isinstance(value, (bool, int, float))
    return repr(value) if is_small else f"a {type(value).__name__}"


def _escape(char: str) -> str:
    number = ord(char)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
