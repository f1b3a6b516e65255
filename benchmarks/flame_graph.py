"""Draws a flame graph as a small SVG (pure): a row for each depth of calls, the width is the share of time.

What takes less than MIN_SHARE of all looks is left out, so the file stays small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from zlib import crc32

MIN_SHARE = 0.004
WIDTH, ROW, LETTER = 1200, 16, 6.2
"""Pixels."""

Stack = tuple[str, ...]


@dataclass(slots=True)
class Frame:
    """A call, and how many looks found it, in one place of the tree."""

    name: str
    looks: int = 0
    calls: dict[str, Frame] = field(default_factory=dict)


def stacks_of(raw: str) -> dict[Stack, int]:
    """Parse the stacks of py-spy's raw format: calls with semicolons between, outermost first, then a number."""
    found: dict[Stack, int] = {}
    for line in raw.splitlines():
        calls, _, count = line.rpartition(" ")
        if calls and count.isdecimal():
            stack = tuple(calls.split(";"))
            found[stack] = found.get(stack, 0) + int(count)
    return found


def working(stacks: Mapping[Stack, int], waits: tuple[str, ...]) -> dict[Stack, int]:
    """Return the stacks whose innermost call does not begin with any of `waits`: waiting threads are not drawn."""
    return {stack: count for stack, count in stacks.items() if not stack[-1].startswith(waits)}


def tree_of(stacks: Mapping[Stack, int]) -> Frame:
    """Merge all stacks at their common beginnings."""
    root = Frame("all")
    for stack, count in stacks.items():
        at = root
        at.looks += count
        for name in stack:
            at = at.calls.setdefault(name, Frame(name))
            at.looks += count
    return root


def flame_svg(stacks: Mapping[Stack, int], title: str, *, min_share: float = MIN_SHARE) -> str:
    """Draw the picture. The outermost calls are at the top."""
    root = tree_of(stacks)
    boxes = list(_boxes(root, 0.0, 0, max(root.looks, 1), min_share)) if root.looks else []
    height = (max((depth for *_, depth in boxes), default=0) + 2) * ROW + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" style="font: 10px monospace">',
        f'<rect width="100%" height="100%" fill="#fff"/><text x="4" y="12">{escape(title)}</text>',
        *(_box(frame, at, width, depth, root.looks) for frame, at, width, depth in boxes),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _boxes(
    frame: Frame, at: float, depth: int, looks: int, min_share: float
) -> Iterator[tuple[Frame, float, float, int]]:
    yield frame, at, frame.looks / looks, depth
    for call in sorted(frame.calls.values(), key=lambda call: call.name):
        if call.looks / looks >= min_share:
            yield from _boxes(call, at, depth + 1, looks, min_share)
        at += call.looks / looks


def _box(frame: Frame, at: float, share: float, depth: int, looks: int) -> str:
    x, y, width = at * WIDTH, (depth + 1) * ROW, share * WIDTH
    hue = 20 + crc32(frame.name.partition(" ")[0].encode()) % 40
    letters = int((width - 4) / LETTER)
    text = escape(frame.name if len(frame.name) <= letters else frame.name[: max(0, letters - 1)] + "…")
    shown = f'<text x="{x + 2:.1f}" y="{y + 11}">{text}</text>' if letters > 3 else ""
    tip = f"<title>{escape(frame.name)}: {frame.looks / looks:.1%}</title>"
    fill = f"hsl({hue} 80% 70%)"
    return f'<g>{tip}<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}" fill="{fill}"/>{shown}</g>'
