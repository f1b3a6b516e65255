"""Both wheels are installed with `understudy-spark[all]`, and used, where there is no repository."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.checkpoint.handmade import HandmadeCheckpoint
from tests.support.documents.blocks import blocks_of
from tests.support.repository import ROOT
from tests.support.spark.queries import wait_until
from tests.support.wheel import INSTALL_LIMIT_S, UV, build_wheels, write_versions
from tools.check_release import (
    PROJECTS,
    archive_problems,
    built_files,
    licence_text_problems,
    project_in,
    wheel_problems,
)

from understudy_shared.base.extras import PACKAGE

DEMO_LIMIT_S = 400

pytestmark = pytest.mark.skipif(not UV.exists(), reason="uv, which `make setup` installs, is not there")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from the source archive as a release is; that of the aligned source is beside it."""
    return build_wheels(tmp_path_factory.mktemp("dist"))


@pytest.mark.full
def test_a_wheel_that_lacks_a_part_is_not_released(wheel: Path, tmp_path: Path) -> None:
    assert licence_text_problems(ROOT) == []
    for home in PROJECTS:
        project = project_in(ROOT / home)
        built, archive = built_files(project, wheel.parent)
        assert wheel_problems(built, project) + archive_problems(archive) == []
    project = project_in(ROOT)
    lacking = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(lacking, "w", zipfile.ZIP_DEFLATED) as part:
        for name in whole.namelist():
            if name != "understudy_node/py.typed":
                part.writestr(name, whole.read(name))
        part.writestr("tests/stray.py", "")
    assert wheel_problems(lacking, project) == ["understudy_node has no py.typed", "tests does not belong in a wheel"]


def installed_from() -> str:
    """What the pages tell a reader to install, as their configuration says it."""
    return str(configured()["installed_from"])


def configured() -> dict[str, object]:
    return runpy.run_path(str(ROOT / "docs/conf.py"))


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("*/*.md"))]


def test_each_page_installs_what_can_be_installed_today() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    found = [
        (page.name, option.strip(), source, given.split(","))
        for page in pages()
        if page.parent.name not in ("decisions", "reference")
        for option, source, given in re.findall(
            r"pip install ([^'\n]*)'([^'\[]*understudy[^'\[]*)\[([^\]]*)\]'", page.read_text()
        )
        if "--target" not in option  # test_spark_cluster_packages.py runs it
    ]
    assert {page for page, *_ in found} >= {"README.md", "own-query.md", "sql.md", "lose-a-node.md"}
    assert [each for each in found if each[2] != installed_from()] == [], "docs/conf.py says what to install"
    assert [each for each in found if not set(each[3]) <= extras] == []
    aligned_in = configured()["aligned_in"]
    wanted = [(page, aligned_in if {"all", "pipeline"} & set(given) else "") for page, _, _, given in found]
    assert [(page, option) for page, option, *_ in found] == wanted, "docs/conf.py says where the other wheel is"


@pytest.mark.full
@pytest.mark.timeout(INSTALL_LIMIT_S)
def test_the_lines_by_which_tutorials_install_run(wheel: Path, tmp_path: Path) -> None:
    """Without what the package needs, which `installed` has: the line itself is what is tried here."""
    shutil.copytree(wheel.parent, tmp_path / "dist")
    assert (tmp_path / installed_from()).is_file()
    blocks = [
        block
        for name in ("own-query", "sql", "lose-a-node", "aligned-source")
        for block in blocks_of((ROOT / f"docs/tutorials/{name}.md").read_text())
        if "pip install" in block.text
    ]
    assert len(blocks) == 4
    variables = {"PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "PIP_NO_DEPS": "1"}
    for block in blocks:
        done = subprocess.run(
            ["bash", "-ec", block.script],
            cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "does not provide the extra" not in done.stderr
    shown = subprocess.run(["pip", "show", PACKAGE], env=variables, capture_output=True, text=True, check=True)
    assert f"Location: {tmp_path}/venv" in shown.stdout


class Installed:
    """The command line as a stranger has it: an environment of its own, an empty folder, no repository."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.program = environment / "bin" / "understudy"
        self.python = environment / "bin" / "python"
        self.folder = folder
        self.variables = {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": os.environ.get("TMPDIR", "/tmp")}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments],
            cwd=self.folder, env=self.variables, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    @contextmanager
    def running(self, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """A command that goes on, and the file of its output; it gets Ctrl-C at the end."""
        said = self.folder / "said.txt"
        with said.open("wb") as output:
            process = subprocess.Popen(
                [self.program, *arguments], cwd=self.folder, env=self.variables, stdout=output, stderr=output
            )
        try:
            yield process, said
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, said.read_text()
        finally:
            process.kill()
            process.wait(60)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """`understudy-spark[all]` out of the wheels, in the versions that uv.lock names."""
    folder = tmp_path_factory.mktemp("installed")
    versions, environment = folder / "versions.txt", folder / "environment"
    write_versions(versions)
    steps: list[list[str | Path]] = [
        ["venv", environment, "--python", sys.executable],
        [
            "pip",
            "install",
            "--python",
            environment,
            "--constraints",
            versions,
            "--find-links",
            wheel.parent,
            f"{PACKAGE}[all] @ {wheel.as_uri()}",
        ],
    ]
    for step in steps:
        subprocess.run([UV, "--quiet", *step], check=True, timeout=INSTALL_LIMIT_S)
    (folder / "empty").mkdir()
    yield Installed(environment, folder / "empty")
    shutil.rmtree(environment)


@pytest.mark.full
@pytest.mark.timeout(INSTALL_LIMIT_S)
def test_the_installed_command_is_not_the_repositorys_and_helps(installed: Installed) -> None:
    code = (
        "import pyspark, understudy, understudy_aligned.source, understudy_node; "
        "print(understudy.__file__, understudy_node.__file__, understudy_aligned.__file__)"
    )
    where = subprocess.run(
        [installed.python, "-c", code], cwd=installed.folder, env=installed.variables,
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert str(ROOT) not in where
    assert where.count("site-packages") == 3
    helped = installed.run("--help")
    assert helped.returncode == 0
    assert "understudy serve" in helped.stdout


@pytest.mark.full
@pytest.mark.timeout(INSTALL_LIMIT_S)
def test_the_installed_serve_answers_a_lookup(installed: Installed, tmp_path: Path) -> None:
    checkpoint = HandmadeCheckpoint(tmp_path / "words").create().add(1, 2)
    with installed.running("serve", str(checkpoint.path), "--port", "0") as (process, said):
        wait_until(lambda: "Ctrl-C stops." in said.read_text() or process.poll() is not None, what="the welcome")
        lines = said.read_text().splitlines()
        url = next(line.split()[-1] for line in lines if line.startswith("Serving at "))
        (curl,) = [line.split("'")[1] for line in lines if "curl" in line]
        with urllib.request.urlopen(curl, timeout=60) as reply:
            assert json.loads(reply.read())["found"] is True
        found = installed.run("get", "op0", "alpha", "--url", url)
        assert (found.returncode, found.stderr) in {(0, ""), (1, "")}
        assert "version    2 of 2" in found.stdout


@pytest.mark.full
@pytest.mark.timeout(INSTALL_LIMIT_S)
def test_uvx_serves_a_checkpoint_from_nothing(wheel: Path, tmp_path: Path) -> None:
    """The package alone has no node: uv brings it. Ctrl-C ends both."""
    checkpoint = HandmadeCheckpoint(tmp_path / "words").create().add(1, 2)
    variables = {name: os.environ[name] for name in os.environ if not name.startswith("VIRTUAL_ENV")}
    said = tmp_path / "said.txt"
    with said.open("wb") as output:
        program: list[str | Path] = [UV, "tool", "run", "--python", sys.executable, "--from", wheel, PACKAGE]
        command = [*program, "serve", checkpoint.path, "--port", "0"]
        process = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=output, stderr=output)
    try:
        wait_until(
            lambda: "Ctrl-C stops." in said.read_text() or process.poll() is not None,
            what="it",
            limit_s=INSTALL_LIMIT_S,
        )
        assert "the extra node is missing: uv starts the command again with it" in said.read_text()
        (curl,) = [line.split("'")[1] for line in said.read_text().splitlines() if "curl" in line]
        with urllib.request.urlopen(curl, timeout=60) as reply:
            assert json.loads(reply.read())["found"] is True
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, said.read_text()
    finally:
        process.kill()
        process.wait(60)


@pytest.mark.full
@pytest.mark.timeout(INSTALL_LIMIT_S)
def test_the_installed_demo_comes_up_and_goes(installed: Installed) -> None:
    arguments = ("demo", "--json", "--nodes", "1", "--routers", "1", "--max-flights", "500")
    with installed.running(*arguments) as (process, said):

        def ready() -> bool:
            return '"event":"ready"' in said.read_text() or process.poll() is not None

        wait_until(ready, what="the demo", limit_s=DEMO_LIMIT_S)
        assert process.poll() is None, said.read_text()
