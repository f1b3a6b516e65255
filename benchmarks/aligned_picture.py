"""docs/images/order-against-latency.svg, from what was measured: two bars for each value of max_task_idle_ms (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.aligned_order import Outcome

_WIDTH, _LEFT, _ROW, _TOP = 720, 150, 58, 74
_BAR = 400
"""The width of a bar for the greatest value of its kind."""

# Bars of middling lightness on no ground of their own; text has a form for white and one for black.
_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#57606a}.name{font-weight:600}"
    ".order{fill:#d1495b}.latency{fill:#3d8bd4}.axis{stroke:#7d8590;stroke-width:1}"
    "@media (prefers-color-scheme:dark){text{fill:#aab2bd}}"
)


def picture(outcomes: Sequence[Outcome]) -> str:
    """Draw an SVG document."""
    height = _TOP + _ROW * len(outcomes) + 14
    most_ms = max(1.0, *(each.on_time_p50_ms for each in outcomes))
    most_percent = max(1.0, *(each.violations_percent for each in outcomes))
    title = "What waiting buys: records out of order, and latency, by max_task_idle_ms"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{title}">',
        f"<title>{title}</title><style>{_STYLE}</style>",
        *_legend(),
        f'<line class="axis" x1="{_LEFT}" y1="{_TOP - 8}" x2="{_LEFT}" y2="{height - 10}"/>',
    ]
    for number, each in enumerate(outcomes):
        y = _TOP + _ROW * number
        lines.append(f'<text class="name" x="{_LEFT - 12}" y="{y + 25}" text-anchor="end">{each.idle_ms}</text>')
        share, wait = each.violations_percent / most_percent, each.on_time_p50_ms / most_ms
        lines += _bar(y, "order", share, f"{each.violations:,} of {each.records:,}, {each.violations_percent:.1f} %")
        lines += _bar(y + 20, "latency", wait, f"{each.on_time_p50_ms:,.0f} ms")
    return "\n".join([*lines, "</svg>", ""])


def _legend() -> list[str]:
    entries = {
        "order": "records with a time before one that came out earlier",
        "latency": "event to sink, median of the topic that is on time",
    }
    lines = [f'<text class="name" x="{_LEFT - 12}" y="40" text-anchor="end">max_task_idle_ms</text>']
    for number, (kind, text) in enumerate(entries.items()):
        y = 14 + 22 * number
        lines.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="12" height="12"/>')
        lines.append(f'<text x="{_LEFT + 20}" y="{y + 11}">{text}</text>')
    return lines


def _bar(y: int, kind: str, share: float, label: str) -> list[str]:
    width = max(1.0, _BAR * share)
    return [
        f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.0f}" height="16"/>',
        f'<text x="{_LEFT + width + 8:.0f}" y="{y + 13}">{label}</text>',
    ]
