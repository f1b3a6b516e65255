"""Which processes there are."""

from __future__ import annotations

from pathlib import Path


def is_there(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_below(pid: int) -> list[int]:
    """What a process has started, and what that has started in turn, as far as it is there."""
    parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found: list[int] = []
    wanted = {pid}
    while wanted:
        wanted = {child for child, parent in parents.items() if parent in wanted}
        found += wanted
    return found


def _parent(process: Path) -> int:
    """0 when it is gone."""
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
