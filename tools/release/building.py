"""Builds wheels and source archives twice, and installs them where nothing is."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tools.release.outcome import LIMIT_S, ROOT, UV, StepError, run

SERVE_LIMIT_S = 300.0
_NO_SOURCES = (".git", ".venv", ".cache", "dist", "__pycache__", ".*_cache", ".hypothesis")
_IMPORT = "import time; t = time.perf_counter(); from understudy import Client; print((time.perf_counter() - t) * 1e3)"


class Bare(NamedTuple):
    """An environment with nothing but what was installed, and where it is."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "understudy"


def build(source: Path, target: Path, **variables: str) -> Mapping[str, str]:
    """Build wheels and source archives, and return their sums by name."""
    target.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "SOURCE_DATE_EPOCH": commit_time(), **variables}
    run([UV, "build", "--quiet", "--all-packages", "--out-dir", target, source], env=env)
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(target.iterdir())
        if path.name.endswith((".whl", ".tar.gz"))
    }


def commit_time() -> str:
    """Return the time of the last commit, which the builds take for every file; without git that of zip files."""
    try:
        return run(["git", "log", "-1", "--format=%ct"]).strip()
    except StepError:
        return "315532800"


def built_again(folder: Path) -> Mapping[str, str]:
    """Build from a copy of the tree, elsewhere, in another zone, language, order and umask; return the sums."""
    before = os.umask(0o077)
    try:
        ignored = shutil.ignore_patterns(*_NO_SOURCES)
        source = shutil.copytree(ROOT, folder / "elsewhere", symlinks=True, ignore=ignored)
        return build(source, folder / "again", TZ="Asia/Kathmandu", LC_ALL="C", PYTHONHASHSEED="7")
    finally:
        os.umask(before)


@contextmanager
def bare(*what: str, python: str, constraints: Path) -> Iterator[Bare]:
    """Give an environment with what was asked for, in the versions of uv.lock."""
    folder = Path(tempfile.mkdtemp(prefix="understudy-release-"))
    try:
        run([UV, "venv", "--quiet", "--python", python, folder / "venv"])
        into: list[str | Path] = ["--python", folder / "venv", "--constraints", constraints]
        run([UV, "pip", "install", "--quiet", *into, *what], cwd=folder)
        yield Bare(folder / "venv")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def size_of(found: Bare) -> str:
    """Return how much was installed: packages, megabytes, and the time that an import takes."""
    packages = [path for path in found.folder.rglob("*.dist-info") if path.is_dir()]
    megabytes = sum(path.stat().st_size for path in found.folder.rglob("*") if path.is_file() and not path.is_symlink())
    run([found.python, "-c", _IMPORT], cwd=found.folder)  # compiles
    import_ms = float(run([found.python, "-c", _IMPORT], cwd=found.folder))
    return f"{len(packages)} packages, {megabytes / 1e6:.0f} MB, client imported in {import_ms:.0f} ms"


def serves(command: list[str | Path], checkpoint: Path, folder: Path) -> str:
    """Serve a checkpoint by a command and look a key up. Raises StepError unless it is found, and the service ends."""
    log = folder / "serve.log"
    variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            [*command, "serve", checkpoint, "--port", "0"], cwd=folder, env=variables,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        end_s = time.monotonic() + (SERVE_LIMIT_S if "tool" not in command else LIMIT_S)
        while "Ctrl-C stops." not in log.read_text():
            if process.poll() is not None or time.monotonic() > end_s:
                raise StepError(f"it did not serve:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        (url,) = re.findall(r"curl '([^']+)'", log.read_text())
        with urllib.request.urlopen(url, timeout=30) as reply:  # noqa: S310  # its own line
            found = json.loads(reply.read())["found"]
        process.terminate()
        if not found or process.wait(60) != 0:
            raise StepError(f"it answered {found}, and ended with {process.returncode}:\n{log.read_text()[-2000:]}")
    finally:
        process.kill()
        process.wait(60)
    return "served and answered"


def pythons() -> Mapping[str, str]:
    """Return the Pythons of this machine that the project supports: of PYTHONS, the path, and pyenv."""
    named = os.environ.get("PYTHONS", "").split()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found: dict[str, str] = {}
    for minor in range(11, 15):
        candidates = [*named, *sorted(map(str, pyenv.glob(f"3.{minor}.*/bin/python"))), f"python3.{minor}"]
        for each in candidates:
            path = shutil.which(each)
            if path is not None and _minor_of(path) == minor:
                found[f"3.{minor}"] = path
                break
    return found


def _minor_of(path: str) -> int:
    try:
        return int(run([path, "-c", "import sys; print(sys.version_info[1])"]))
    except (StepError, ValueError):
        return -1
