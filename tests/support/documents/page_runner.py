"""Runs the blocks of a page in order, in one folder, as a reader would: each in a shell, servers in the background."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.documents.blocks import Block, PageError, blocks_of, missing_line, page_before

LIMIT_S = 120.0
"""The longest that one block may take, or that a server may take to say that it serves."""

_PAUSE_S = 0.2
_SHELL = ("bash", "-eo", "pipefail", "-c")
_DEMO = re.compile(r"Watch it at (http://\S+)/admin/")
"""The demo takes other ports where its own are taken, and says which: a reader's commands then go there."""


@dataclass(slots=True)
class Background:
    """A process that a block started, with its children in a session of their own."""

    script: str
    process: subprocess.Popen[bytes]
    output: Path

    def stop(self) -> None:
        """End it in good order, and what is left of it after that at once."""
        for kind in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, kind)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)


@dataclass(slots=True)
class PageRunner:
    """The folder of a reader, the environment, and what runs in the background.

    `replaced` are texts of a page that are different here: ports, and places of files.
    """

    folder: Path
    environment: dict[str, str]
    replaced: Mapping[str, str] = field(default_factory=dict)
    running: list[Background] = field(default_factory=list)

    def run_page(self, page: Path) -> int:
        """Run the pages before it, then each of its blocks. Return how many blocks of it ran."""
        text = page.read_text()
        before = page_before(text)
        if before is not None:
            self.run_page(page.parent / before)
        blocks = [block for block in blocks_of(text) if block.is_run or block.mark("file")]
        for block in blocks:
            self.run(block)
        return len(blocks)

    def run(self, block: Block) -> None:
        """Run one block as its marks say. Raises PageError with the output when it does something else."""
        name, background = block.mark("file"), block.mark("background")
        if name is not None:
            (self.folder / name).write_text(self._here(block.text))
        elif background is not None:
            wanted, _, instead = background.removeprefix('"').partition('"')
            self._start(self._here(block.script), wanted, is_instead=bool(instead.strip()))
        else:
            self._until(block)

    def _until(self, block: Block) -> None:
        wanted = (block.mark("until") or "").strip('"')
        end = time.monotonic() + LIMIT_S
        while True:
            code, output = self._run(block)
            missing = self._complaint(block, code, output, wanted)
            if missing is None:
                return
            if not wanted or time.monotonic() > end:
                raise PageError(f"{missing}\n$ {block.script}\n{output}{self._background_output()}")
            time.sleep(_PAUSE_S)

    @staticmethod
    def _complaint(block: Block, code: int, output: str, wanted: str) -> str | None:
        """Return what the output should have been and is not."""
        if code != int(block.mark("exit") or 0):
            return f"it ended with {code}"
        if wanted not in output:
            return f"it does not say {wanted!r}"
        line = missing_line(block.expected, output)
        return None if line is None else f"it does not print the line: {line}"

    def _run(self, block: Block) -> tuple[int, str]:
        script = self._here(block.script)
        command = [sys.executable, "-c", script] if block.language == "python" else [*_SHELL, script]
        with self._output("block") as (path, stream):
            done = subprocess.run(
                command,
                check=False,
                cwd=self.folder,
                env=self.environment,
                stdout=stream,
                stderr=stream,
                timeout=LIMIT_S,
            )
        return done.returncode, path.read_text(errors="replace")

    def _start(self, script: str, wanted: str, *, is_instead: bool) -> None:
        program = _program(script)
        if is_instead:
            for each in [each for each in self.running if _program(each.script) == program]:
                each.stop()
                self.running.remove(each)
        with self._output(f"background-{len(self.running)}") as (path, stream):
            process = subprocess.Popen(
                [*_SHELL, script],
                cwd=self.folder,
                env=self.environment,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        started = Background(script, process, path)
        self.running.append(started)
        end = time.monotonic() + LIMIT_S
        while wanted not in path.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > end:
                raise PageError(f"it does not say {wanted!r}\n$ {script}\n{path.read_text(errors='replace')}")
            time.sleep(_PAUSE_S)
        found = _DEMO.search(path.read_text(errors="replace"))
        if found is not None:
            self.environment["UNDERSTUDY_URL"] = found[1]

    @contextmanager
    def _output(self, name: str) -> Iterator[tuple[Path, int]]:
        path = self.folder.parent / f"{name}.out"
        with path.open("wb") as stream:
            yield path, stream.fileno()

    def _background_output(self) -> str:
        return "".join(
            f"\n-- {each.script}\n{each.output.read_text(errors='replace')[-3000:]}" for each in self.running
        )

    def _here(self, text: str) -> str:
        for original, replacement in self.replaced.items():
            text = re.sub(rf"(?<![\w]){re.escape(original)}(?![\w])", replacement, text)
        return text

    def stop(self) -> None:
        """Stop what runs, the last one first."""
        while self.running:
            self.running.pop().stop()


def _program(script: str) -> str:
    """Return the program and its first word: what "start it again" means."""
    return " ".join(shlex.split(script.strip().splitlines()[-1])[:2])
