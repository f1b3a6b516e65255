"""Builds the accelerator jar of the aligned source from `aligned/accelerator`, against the installed PySpark.

    python -m tools.build_jar

Needs a JDK of 17 or newer. The jar goes into the package, from which the wheel takes it. The same sources give the same
bytes, and are not compiled again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark
from tools.compiled import NoCompilerError, build_or_explain

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "aligned" / "accelerator"
JAR = ROOT / "aligned" / "understudy_aligned" / "accelerator" / "understudy-accelerator.jar"
RELEASE = "17"
MANIFEST = "META-INF/MANIFEST.MF"

_LIMIT_S = 300
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of every entry: the first that a zip file can hold."""


def build() -> Path:
    """Build the jar if its sources have changed. Raises NoCompilerError; CalledProcessError if they do not compile."""
    digest = _digest()
    if _digest_in(JAR) == digest:
        return JAR
    compiler = _compiler()
    with tempfile.TemporaryDirectory() as name:
        classes = Path(name)
        _compile(compiler, sorted(SOURCES.rglob("*.java")), classes)
        entries = {path.relative_to(classes).as_posix(): path.read_bytes() for path in classes.rglob("*.class")}
    entries |= {path.relative_to(SOURCES).as_posix(): path.read_bytes() for path in (SOURCES / "META-INF").rglob("*.*")}
    manifest = f"Manifest-Version: 1.0\nSources-Digest: {digest}\n"
    _write_zip(JAR, {MANIFEST: manifest.encode(), **dict(sorted(entries.items()))})
    return JAR


def _compiler() -> str:
    """Return `javac` of JAVA_HOME, or else of PATH."""
    of_home = Path(os.environ.get("JAVA_HOME", "/nonexistent"), "bin", "javac")
    found = str(of_home) if of_home.is_file() else shutil.which("javac")
    if found is None:
        raise NoCompilerError("there is no javac: install a JDK of 17 or newer, or set JAVA_HOME to one")
    return found


def _compile(compiler: str, sources: Sequence[Path], classes: Path) -> None:
    jars = str(Path(pyspark.__file__).parent / "jars" / "*")
    command = [compiler, "-nowarn", "-proc:none", "--release", RELEASE, "-cp", jars, "-d", str(classes)]
    subprocess.run([*command, *map(str, sources)], check=True, timeout=_LIMIT_S)  # noqa: S603  # the JDK's


def _digest() -> str:
    """Hash everything that decides what is in the jar."""
    digest = hashlib.sha256(f"{pyspark.__version__} {RELEASE}".encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(path.relative_to(SOURCES).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def _digest_in(jar: Path) -> str | None:
    if not jar.is_file():
        return None
    with zipfile.ZipFile(jar) as files:
        lines = files.read(MANIFEST).decode().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("Sources-Digest: ")), None)


def _write_zip(path: Path, entries: Mapping[str, bytes]) -> None:
    draft = path.with_suffix(f".{os.getpid()}.draft")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as files:
        for name, contents in entries.items():
            files.writestr(zipfile.ZipInfo(name, _EPOCH), contents, zipfile.ZIP_DEFLATED)
    draft.replace(path)


if __name__ == "__main__":
    raise SystemExit(build_or_explain(build, JAR))
