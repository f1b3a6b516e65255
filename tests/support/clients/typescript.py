"""A client by `openapi-typescript`: types made from a document, a program that they fit, and what it understood."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.support.clients.conversation import KEYS, MISSING, PAIR, WORD
from tests.support.clients.tools import NODE_MODULES

_PROGRAM = Path(__file__).with_name("conversation.ts")
_COMPILER = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck", "--types", "node")


def generated(document: Path, folder: Path) -> str:
    """Write the types, and compile the program by them. Returns what the tools said beyond their success."""
    folder.mkdir()
    (folder / "node_modules").symlink_to(NODE_MODULES)
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copy(_PROGRAM, folder)
    said = _run("openapi-typescript", str(document), "-o", "document.ts", folder=folder)
    rest = [line for line in said.splitlines() if line and not line.startswith(("✨", "🚀"))]
    return "\n".join(rest) + _run("tsc", *_COMPILER, _PROGRAM.name, folder=folder)


def asked(folder: Path, url: str) -> dict[str, object]:
    """What the program understood, by question."""
    told = json.dumps([url, WORD, PAIR, MISSING, KEYS])
    done = subprocess.run(
        ["node", "conversation.js", told], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    understood: dict[str, object] = json.loads(done.stdout)
    return understood


def _run(tool: str, *arguments: str, folder: Path) -> str:
    program = NODE_MODULES / ".bin" / tool
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"\n{tool} ended with {done.returncode}")
