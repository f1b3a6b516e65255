"""The fenced blocks of a page, and what the page says about how a test runs each (pure).

A comment before a block is invisible to readers. `<!-- test: file query.py -->` writes the block to a file,
`background "text"` starts it and waits for its output to say the text (`instead`: first stops what the same program
started), `until "text"` runs it again until it says the text, `exit 2` is the exit code, `not run: why` leaves it out.
`after PAGE` stands for the whole page, which goes on from that one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RUNNABLE = ("sh", "bash", "console", "python")
_BLOCK = re.compile(r"(?ms)((?:^<!-- test: [^\n]*-->\n)*)^```(\w*)[^\n]*\n(.*?)^```$")
_MARK = re.compile(r"<!-- test: (.*?) -->")
_KINDS = re.compile(r'file \S+|background "[^"]+"( instead)?|until "[^"]+"|exit \d+|not run: .{10,}|after \S+\.md')
_NUMBER = re.compile(r"\d+")
_TOKEN = re.compile(r"us1\.[\w-]+")


class PageError(AssertionError):
    """A page says of a block what this runner does not know."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block: its language, its text, and the marks before it."""

    language: str
    text: str
    marks: Sequence[str]

    def mark(self, kind: str) -> str | None:
        """Return what a mark of this kind says, or None without one."""
        found = [mark.removeprefix(kind).strip() for mark in self.marks if mark.startswith(kind)]
        return found[0] if found else None

    @property
    def is_run(self) -> bool:
        return self.language in RUNNABLE and self.mark("not run:") is None and self.mark("file") is None

    @property
    def script(self) -> str:
        """The commands: of a console those behind the prompt."""
        if self.language != "console":
            return self.text
        return "\n".join(line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ "))

    @property
    def expected(self) -> Sequence[str]:
        """The output that a console shows, line by line."""
        if self.language != "console":
            return []
        return [line for line in self.text.splitlines() if line.strip() and not line.startswith("$ ")]


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page in their order. Raises PageError for a mark that is not known, or without a block."""
    found = [
        Block(language, body, [mark for mark in _MARK.findall(marks) if not mark.startswith("after ")])
        for marks, language, body in _BLOCK.findall(text)
    ]
    all_marks = _MARK.findall(text)
    unknown = [mark for mark in all_marks if not _KINDS.fullmatch(mark)]
    if unknown:
        raise PageError(f"no such mark: {unknown[0]}")
    if sum(len(block.marks) for block in found) + sum(mark.startswith("after ") for mark in all_marks) < len(all_marks):
        raise PageError("a mark stands before no block")
    return found


def page_before(text: str) -> str | None:
    """Return the name of the page that this one goes on from."""
    found = re.search(r"<!-- test: after (\S+\.md) -->", text)
    return found[1] if found else None


def files_written(page: Path) -> set[str]:
    """Return the names of the files that a reader of the page makes."""
    text = page.read_text()
    before = page_before(text)
    own = {name for block in blocks_of(text) for name in [block.mark("file")] if name}
    return own | (files_written(page.parent / before) if before else set())


def shape(line: str) -> str:
    """Return a line without what differs from run to run: numbers, tokens, the width of columns."""
    return " ".join(_NUMBER.sub("#", _TOKEN.sub("us1", line)).split())


def missing_line(expected: Sequence[str], output: str) -> str | None:
    """Return the first expected line that the output does not have, in this order; None when it has all of them."""
    lines = iter([shape(line) for line in output.splitlines()])
    for line in expected:
        if line.strip() != "..." and not any(shape(line) == each for each in lines):
            return line
    return None
