"""The steps of the release check. Where a command of a step fails, its docstring says what to do."""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.forms.api import api_form
from tests.support.forms.form import broken
from tests.support.forms.recorded import RECORDED, file_of, files_today
from tests.support.wheel import write_versions
from tools.chart import PYTHON, HelmError, call_of, helm
from tools.check_release import (
    PROJECTS,
    archive_problems,
    built_files,
    licence_text_problems,
    project_in,
    wheel_problems,
)
from tools.release.architectures import wheel_problems as architecture_problems
from tools.release.building import bare, build, built_again, pythons, serves, size_of
from tools.release.licences import licence_problems, vendored_problems
from tools.release.outcome import ROOT, UV, Outcome, StepError, of_problems, run
from tools.release.texts import PLACES, changelog_problems, version_of, version_problems

from understudy_shared.base.extras import PACKAGE

DIST = ROOT / "dist"
TOOLS = {
    "twine==7.0.0": ["twine", "check", "--strict"],
    "check-wheel-contents==0.6.3": ["check-wheel-contents", "--ignore", "W002,W009"],
}
"""Programs that judge what was built. W002: uPlot has its licence twice; W009: a wheel has several packages."""
WORKFLOWS = "zizmor==1.32.0"
OPENAPI = "shared/understudy_shared/http/openapi/openapi.json"


@dataclass
class Release:
    """A release, or the check before it, without a tag."""

    tag: str

    @cached_property
    def version(self) -> str:
        return version_of((ROOT / "pyproject.toml").read_text())

    @property
    def wheel(self) -> Path:
        """The wheel of `understudy-spark`."""
        return self.files()[0]

    def files(self, home: str = ".") -> tuple[Path, Path]:
        """Return wheel and source archive of the distribution in a folder."""
        return built_files(project_in(ROOT / home), DIST)

    @cached_property
    def constraints(self) -> Path:
        path = DIST / "constraints.txt"
        write_versions(path)
        return path


def versions(release: Release) -> Outcome:
    """Write the version of pyproject.toml where another stands, and tag that version."""
    texts = {place: (ROOT / place).read_text() for place in PLACES}
    problems = list(version_problems(release.version, texts))
    if release.tag not in ("", f"v{release.version}"):
        problems.append(f"the tag is {release.tag}, the version {release.version}")
    return of_problems(problems, f"{release.version} in {len(texts)} files", versions.__doc__ or "")


def changelog(release: Release) -> Outcome:
    """Rename "Unreleased" to "VERSION - DATE", give it "### Upgrade notes", and begin a new "Unreleased"."""
    problems = list(changelog_problems(release.version, (ROOT / "CHANGELOG.md").read_text()))
    return of_problems(problems, "dated, with upgrade notes", changelog.__doc__ or "", otherwise="due")


def twice(release: Release) -> Outcome:
    """Find what differs: unzip both and compare. Times, orders, paths and the environment are the usual suspects."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("understudy[-_]*"):
        old.unlink()
    first = build(ROOT, DIST)
    with tempfile.TemporaryDirectory() as name:
        second = built_again(Path(name))
    problems = [f"{each} differs" for each in first if second.get(each) != first[each]]
    (DIST / "SHA256SUMS").write_text("".join(f"{digest}  {each}\n" for each, digest in first.items()))
    return of_problems(problems, "two builds, the same bytes", twice.__doc__ or "")


def metadata(release: Release) -> Outcome:
    """Correct pyproject.toml; tools/check_release.py and twine say what they miss."""
    problems = licence_text_problems(ROOT)
    for home in PROJECTS:
        wheel, archive = release.files(home)
        problems += wheel_problems(wheel, project_in(ROOT / home)) + archive_problems(archive)
        for tool, command in TOOLS.items():
            files = [wheel, archive] if command[0] == "twine" else [wheel]
            run([UV, "tool", "run", "--quiet", "--from", tool, *command, *files])
    return of_problems(problems, "twine, check-wheel-contents and ours", metadata.__doc__ or "")


def links(release: Release) -> Outcome:
    """Build with REPOSITORY_URL set to the address of the repository: make release-check REPOSITORY_URL=https://..."""
    problems, found = [], []
    for wheel in (release.files(home)[0] for home in PROJECTS):
        with zipfile.ZipFile(wheel) as files:
            (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
            found = re.findall(r"(?m)^Project-URL: (\w+)", files.read(name).decode())
        problems += [] if found else [f"{wheel.name} has no links"]
    return of_problems(problems, ", ".join(found), links.__doc__ or "", otherwise="due")


def dependencies() -> set[str]:
    """Return the names of all packages that the extras bring."""
    export = ["export", "--frozen", "--all-extras", "--no-dev", "--no-emit-workspace", "--no-hashes", "--no-annotate"]
    lines = run([UV, "--quiet", *export]).splitlines()
    return {line.partition("==")[0].partition("[")[0] for line in lines if "==" in line}


def architectures(_: Release) -> Outcome:
    """Wait for the wheel, or leave the extra out of the images of that machine."""
    names = dependencies()
    problems = list(architecture_problems((ROOT / "uv.lock").read_text(), names))
    return of_problems(problems, f"wheels of {len(names)} packages for amd64 and arm64", architectures.__doc__ or "")


def licences(_: Release) -> Outcome:
    """Replace the package, or write into tools/release/licences.py why it may stay; name vendored files in NOTICE."""
    names = dependencies()
    problems = [*licence_problems(names), *vendored_problems(ROOT)]
    return of_problems(problems, f"{len(names)} packages, and the vendored files", licences.__doc__ or "")


def sbom(release: Release) -> Outcome:
    """Run the command by hand; uv makes the list from uv.lock."""
    path = DIST / f"understudy_spark-{release.version}.cdx.json"
    export = ["export", "--frozen", "--all-extras", "--no-dev", "--preview-features", "sbom-export"]
    run([UV, "--quiet", *export, "--format", "cyclonedx1.5", "--output-file", path])
    return Outcome("ok", f"{len(json.loads(path.read_text())['components'])} components in {path.name}")


def installs(release: Release) -> Outcome:
    """Install by hand into a new environment of that Python and read the error: a missing file, or a dependency."""
    said = []
    with tempfile.TemporaryDirectory() as name:
        checkpoint = HandmadeCheckpoint(Path(name) / "words").create().add(1, 2).path
        for version, python in pythons().items():
            made_by = partial(bare, python=python, constraints=release.constraints)
            for file in release.files():
                with made_by(f"{PACKAGE} @ {file.as_uri()}") as found:
                    run([found.program, "--version"], cwd=found.folder)
                    said.append(f"{version} {file.suffix.strip('.')}: {size_of(found)}")
            with made_by(f"{PACKAGE}[node] @ {release.wheel.as_uri()}") as found:
                said.append(f"{version} node: {serves([found.program], checkpoint, found.folder)}")
            for file in release.files("aligned"):
                needs = f"{PACKAGE}[pipeline] @ {release.wheel.as_uri()}"
                with made_by(needs, f"understudy-aligned @ {file.as_uri()}") as found:
                    run([found.python, "-c", "import understudy_aligned.accelerator.planner"], cwd=found.folder)
                    said.append(f"{version} aligned {file.suffix.strip('.')}: {size_of(found)}")
    missing = sorted({"3.11", "3.12", "3.13", "3.14"} - pythons().keys())
    if missing:
        fix = "Name them: PYTHONS='/path/to/python3.14' make release-check; the release workflow has them all"
        return Outcome("due", "\n".join([f"no Python {', '.join(missing)} here", *said]), fix)
    return Outcome("ok", "\n".join(said))


def uvx(release: Release) -> Outcome:
    """Run uv tool run --from dist/*.whl understudy-spark serve CHECKPOINT, and read commands/group.py."""
    with tempfile.TemporaryDirectory() as name:
        checkpoint = HandmadeCheckpoint(Path(name) / "words").create().add(1, 2).path
        command: list[str | Path] = [UV, "tool", "run", "--from", release.wheel, PACKAGE]
        return Outcome("ok", serves(command, checkpoint, Path(name)))


def forms(release: Release) -> Outcome:
    """Run python -m tools.record_forms and commit what it wrote, if this version is not released yet."""
    if not (RECORDED / release.version).is_dir():
        return Outcome("due", f"the forms of {release.version} are not recorded", forms.__doc__ or "")
    problems = [
        f"{name} is not as recorded"
        for name, text in files_today().items()
        if not (path := file_of(release.version, name)).is_file() or path.read_text() != text
    ]
    return of_problems(problems, f"recorded for {release.version}", forms.__doc__ or "", otherwise="due")


def promises(_: Release) -> Outcome:
    """Read docs/compatibility.md: the test says what is gone and what to do."""
    run([ROOT / ".venv/bin/pytest", "-q", "tests/contract/compatibility"])
    tag = last_tag()
    if not tag:
        return Outcome("ok", "recorded releases are kept; there is no tag to compare the API with")
    then, now = json.loads(run(["git", "show", f"{tag}:{OPENAPI}"])), json.loads((ROOT / OPENAPI).read_text())
    problems = [
        line
        for is_admin in (False, True)
        for line in broken(*(api_form(each, is_admin=is_admin) for each in (then, now)))
    ]
    return of_problems(problems, f"recorded releases and the API of {tag} are kept", promises.__doc__ or "")


def last_tag() -> str:
    """Return the newest tag of a release before this commit; "" without one."""
    try:
        return run(["git", "describe", "--tags", "--match", "v[0-9]*", "--abbrev=0", "HEAD^"]).strip()
    except StepError:
        return ""


def chart(release: Release) -> Outcome:
    """Run make helm, and correct the chart: its tests say more (tests/contract/deploy)."""
    if not PYTHON.exists():
        return Outcome("skipped", "no Helm here", "make helm")
    try:
        (found,) = helm([call_of("package", {}, into=str(DIST))])
    except HelmError as error:
        found = {"error": str(error)}
    if "error" in found:
        return Outcome("failed", found["error"], chart.__doc__ or "")
    return Outcome("ok", f"{Path(found['archive']).name}, for helm push to an OCI registry")


def workflows(_: Release) -> Outcome:
    """Read what zizmor found in .github/workflows: each finding has a page with the remedy."""
    try:
        run([UV, "tool", "run", "--quiet", "--from", WORKFLOWS, "zizmor", "--version"])
    except StepError as error:
        return Outcome("skipped", str(error), f"Install {WORKFLOWS}")
    run([UV, "tool", "run", "--quiet", "--from", WORKFLOWS, "zizmor", "--offline", "--min-severity=medium", ".github"])
    return Outcome("ok", "zizmor finds nothing of weight")


STEPS: Mapping[str, Callable[[Release], Outcome]] = {
    "versions": versions,
    "changelog": changelog,
    "two builds": twice,
    "metadata": metadata,
    "links": links,
    "licences": licences,
    "architectures": architectures,
    "sbom": sbom,
    "installs": installs,
    "uvx": uvx,
    "forms": forms,
    "promises": promises,
    "chart": chart,
    "workflows": workflows,
}
"""The steps by name, in their order: later ones need what `two builds` built."""
