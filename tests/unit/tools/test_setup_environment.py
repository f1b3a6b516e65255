"""`make setup` refuses clearly, does nothing twice, and never needs a network for that nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.matrix import in_full
from tests.support.repository import ROOT
from tools.setup_environment import is_current, refusal, write_stamp

OFFLINE = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "",
    "UV_OFFLINE": "1",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `make setup` looks at, with an environment that has Python and nothing more."""
    (tmp_path / "aligned").mkdir()
    for name in ("Makefile", "pyproject.toml", "aligned/pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("version", "has_ensurepip", "expected"),
    [
        pytest.param((3, 10), True, "needs Python 3.11 or newer, and /usr/bin/python3 is 3.10", id="old"),
        pytest.param((3, 11), False, "apt-get install python3.11-venv", id="no ensurepip"),
        pytest.param((3, 10), False, "make PYTHON=python3.11", id="old before no ensurepip"),
    ],
)
def test_a_python_that_will_not_do_is_refused_with_what_to_do(
    version: tuple[int, int], has_ensurepip: bool, expected: str
) -> None:
    message = refusal(version, "/usr/bin/python3", has_ensurepip=has_ensurepip)
    assert message is not None
    assert expected in message


def test_a_second_setup_does_nothing_and_needs_no_network(checkout: Path) -> None:
    write_stamp(checkout, tools=True)
    done = _make(checkout, "setup")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "name", in_full(("pyproject.toml", "aligned/pyproject.toml", "uv.lock"), if_in=("aligned/pyproject.toml",))
)
def test_a_changed_file_is_set_up_again_and_a_failed_step_is_named(checkout: Path, name: str) -> None:
    write_stamp(checkout, tools=True)
    with (checkout / name).open("a") as file:
        file.write("\n# changed\n")
    done = _make(checkout, "setup")
    assert done.returncode != 0
    assert "setup: installing uv" in done.stdout
    assert "exit code" in done.stderr
    assert not is_current(checkout, tools=True), "a setup that failed must not count as done"


def _make(checkout: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "PIP_", "UV_"))}
    return subprocess.run(
        ["make", "--no-print-directory", f"PYTHON={sys.executable}", *targets],
        cwd=checkout,
        env={**environment, **OFFLINE},
        capture_output=True,
        text=True,
        check=False,
    )
