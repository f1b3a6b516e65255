"""The steps of the release check, what came of them, and the table at the end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".venv" / "bin" / "uv"
LIMIT_S = 900

State = Literal["ok", "due", "skipped", "failed"]


class Outcome(NamedTuple):
    """The outcome of a step. `due` is what only a tagged release must have, `fix` says what to do."""

    state: State
    said: str
    fix: str = ""


class Done(NamedTuple):
    """A step that was taken."""

    name: str
    outcome: Outcome
    took_s: float


class StepError(Exception):
    """A command of a step that failed, with the end of what it printed."""


def run(command: Sequence[str | Path], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a command within a time and return what it printed. Raises StepError."""
    name = " ".join(map(str, command))
    try:
        done = subprocess.run(  # noqa: S603  # commands of this file's neighbours
            list(map(str, command)), cwd=cwd, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepError(f"{name}: {error}") from None
    if done.returncode != 0:
        raise StepError(f"{name} ended with {done.returncode}:\n{done.stdout[-2000:].strip()}")
    return done.stdout


def of_problems(problems: Sequence[str], said: str, fix: str, *, otherwise: State = "failed") -> Outcome:
    """Return the outcome of a list of problems (pure)."""
    return Outcome(otherwise, "; ".join(problems), fix) if problems else Outcome("ok", said)


def table(steps: Sequence[Done]) -> Iterator[str]:
    """Yield the summary, and below it what to do about each step that is not well (pure)."""
    width = max(len("step"), *(len(each.name) for each in steps))
    yield f"{'step':{width}}  {'state':7}  {'s':>5}  what"
    for each in steps:
        first = each.outcome.said.partition("\n")[0]
        yield f"{each.name:{width}}  {each.outcome.state:7}  {each.took_s:5.0f}  {first[:160]}"
    for each in steps:
        if each.outcome.state != "ok":
            yield f"\n{each.name} ({each.outcome.state}): {each.outcome.said}"
            yield f"  do: {each.outcome.fix or 'see above'}"
