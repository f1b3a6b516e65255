"""Checks what `make release` built, without a network: what an installer needs is in it, and nothing points outside.

    python tools/check_release.py dist

Prints each file with its size and what is in it. Exit code 1 names everything that is wrong.
"""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

PROJECTS = (".", "aligned")
"""The folders of the distributions: `understudy-spark`, and its aligned source."""

MAX_WHEEL_BYTES = 4_500_000
"""The limit is three times the present size: a folder that does not belong into a wheel would exceed it."""
PAGE_FILES = ("templates/page.html", "static/page.css", "static/main.js", "static/vendor/uPlot.iife.min.js")
RUNBOOKS = Path(__file__).parents[1] / "docs" / "runbooks"
ACCELERATOR = "understudy_aligned/accelerator/understudy-accelerator.jar"
NATIVE = re.compile(r"understudy_aligned/inputs/kafka_records\..+\.so")
LICENCE = Path("LICENSE")
ENTRY_POINTS = ("understudy", "understudy-spark", "serve", "node", "router")
REQUIRED = ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Description-Content-Type")


def main() -> int:
    """Check the wheel and the source archive of each distribution in the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    problems, files = [], []
    for home in PROJECTS:
        project = project_in(home)
        wheel, archive = built_files(project, folder)
        missing = [str(path) for path in (wheel, archive) if not path.is_file()]
        problems += [f"there is no {path}" for path in missing] or (
            wheel_problems(wheel, project) + archive_problems(archive)
        )
        files += [wheel, archive]
    problems += licence_text_problems()
    for problem in problems:
        _say(f"wrong: {problem}")
    if not problems:
        for path in files:
            _say(f"{path}  {path.stat().st_size / 1000:.0f} kB")
        names = [name for path in files if path.suffix == ".whl" for name in zipfile.ZipFile(path).namelist()]
        if ACCELERATOR not in names:
            _say("there is no accelerator jar: there was no JDK to build it with (make jar)")
        if not any(map(NATIVE.fullmatch, names)):
            _say("there is no native library: there was no C compiler to build it with (make native)")
        _say(f"try it: pip install --find-links {folder} '{files[0]}[all]'; understudy demo")
    return 1 if problems else 0


def project_in(home: str | Path) -> dict[str, dict[str, Any]]:
    """Return the pyproject.toml of a folder."""
    return tomllib.loads((Path(home) / "pyproject.toml").read_text())


def built_files(project: dict[str, dict[str, Any]], folder: Path) -> tuple[Path, Path]:
    """Return the paths of the wheel and the source archive of a distribution."""
    stem = f"{project['project']['name'].replace('-', '_')}-{project['project']['version']}"
    return folder / f"{stem}-py3-none-any.whl", folder / f"{stem}.tar.gz"


def licence_text_problems(root: Path = Path()) -> list[str]:
    """Report the distributions that have another licence text than the repository: an archive cannot have a link."""
    text = (root / LICENCE).read_text()
    return [f"{home}/{LICENCE} differs" for home in PROJECTS if (root / home / LICENCE).read_text() != text]


def wheel_problems(wheel: Path, project: dict[str, dict[str, Any]]) -> list[str]:
    """List what keeps a wheel from being installed, typed or found."""
    said, tool = project["project"], project["tool"]
    packages = [Path(each).name for each in tool["hatch"]["build"]["targets"]["wheel"]["packages"]]
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        info = next(name for name in names if name.endswith(".dist-info/METADATA")).removesuffix("METADATA")
        metadata = Parser().parsestr(files.read(info + "METADATA").decode())
        entry_points = files.read(info + "entry_points.txt").decode() if "scripts" in said else ""
        broken = files.testzip()
    # Many conditions, each a line of its own: this is a list of what to check.
    problems = [f"{wheel.name}: {broken} is damaged"] if broken else []
    problems += [f"{package} has no py.typed" for package in packages if f"{package}/py.typed" not in names]
    problems += [f"{package} is not in it" for package in packages if f"{package}/__init__.py" not in names]
    if "understudy_shared" in packages:
        problems += [f"{name} is not in it" for name in _shared_files() if name not in names]
    foreign = sorted({name.partition("/")[0] for name in names} - {*packages, info.rstrip("/")})
    problems += [f"{name} does not belong in a wheel" for name in foreign]
    problems += [f"the metadata lacks {field}" for field in REQUIRED if not metadata[field]]
    if "scripts" in said:
        problems += [f"the entry point {name} is missing" for name in ENTRY_POINTS
                     if f"\n{name} = " not in entry_points]  # fmt: skip
        problems += _extra_problems(metadata, said)
    if wheel.stat().st_size > MAX_WHEEL_BYTES:
        problems.append(f"{wheel.name} has {wheel.stat().st_size} bytes, above {MAX_WHEEL_BYTES}")
    return problems


def _shared_files() -> list[str]:
    """Return the pages, runbooks and documents that the wheel has in `understudy_shared`."""
    runbooks = [*(page.name for page in RUNBOOKS.glob("*.md")), "operations.md"]
    return [
        *(f"understudy_shared/page/{name}" for name in PAGE_FILES),
        *(f"understudy_shared/runbooks/{name}" for name in runbooks),
        "understudy_shared/http/openapi/openapi.json",
    ]


def _extra_problems(metadata: Message, said: dict[str, Any]) -> list[str]:
    """Report the extras that `all` leaves out: with it no part needs a second install."""
    extras = set(metadata.get_all("Provides-Extra") or [])
    everything = next(iter(said["optional-dependencies"]["all"]), "").partition("[")[2].rstrip("]").split(",")
    lacking = sorted(extra for extra in extras - {"all"} if extra not in everything)
    return [f"the extra `all` lacks {', '.join(lacking)}"] if lacking else []


def archive_problems(archive: Path) -> list[str]:
    """List what keeps a source archive from being built again."""
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    needed = ("LICENSE", "README.md", "pyproject.toml", "PKG-INFO")
    return [f"{archive.name} lacks {name}" for name in needed if name not in names]


def _say(line: str) -> None:
    print(line)  # noqa: T201  # a tool for people


if __name__ == "__main__":
    sys.exit(main())
