"""Builds the library that takes records out of librdkafka without Python objects, from `aligned/native`.

    python -m tools.build_native

Needs a C compiler (`CC`, or `cc`). The library goes into the package, from which the wheel takes it. It is not compiled
again unless its source has changed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from tools.compiled import NoCompilerError, build_or_explain

from understudy_aligned.inputs.kafka_native import LIBRARY

SOURCE = Path(__file__).parents[1] / "aligned" / "native" / "kafka_records.c"
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")

_LIMIT_S = 120


def build() -> Path:
    """Build the library if its source changed. Raises NoCompilerError; CalledProcessError if it does not compile."""
    mark = f"understudy source {_digest()}"
    if LIBRARY.is_file() and mark.encode() in LIBRARY.read_bytes():
        return LIBRARY
    draft = LIBRARY.with_suffix(f".{os.getpid()}.draft")
    command = [*_compiler(), *FLAGS, f'-DSOURCE_MARK="{mark}"', "-o", str(draft), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=_LIMIT_S)  # noqa: S603  # the compiler that the user names
    draft.replace(LIBRARY)
    return LIBRARY


def _compiler() -> list[str]:
    named = shlex.split(os.environ.get("CC", "cc"))
    if not named or shutil.which(named[0]) is None:
        raise NoCompilerError("there is no C compiler: install one, or set CC to one")
    return named


def _digest() -> str:
    return hashlib.sha256(" ".join(FLAGS).encode() + SOURCE.read_bytes()).hexdigest()[:32]


if __name__ == "__main__":
    raise SystemExit(build_or_explain(build, LIBRARY))
